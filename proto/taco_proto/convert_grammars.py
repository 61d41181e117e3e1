"""Converters of the messages about grammars between scheduler and worker."""

from taco_proto import scheduler_pb2 as pb
from taco_proto.grammars import Grammar, GrammarCommand, GrammarReady
from taco_proto.message_codec import MessageCodec

_READY = MessageCodec(GrammarReady, pb.GrammarReady)
grammar_ready_to_pb = _READY.to_pb
grammar_ready_from_pb = _READY.from_pb


def grammar_command_to_pb(command: GrammarCommand) -> pb.GrammarCommand:
    return pb.GrammarCommand(
        compiled_hashes=[grammar.hash for grammar in command.compiled],
        compiled_texts=[grammar.text for grammar in command.compiled],
        released=command.released,
    )


def grammar_command_from_pb(message: pb.GrammarCommand) -> GrammarCommand:
    """Raises ValueError: the columns differ in length."""
    columns = zip(message.compiled_texts, message.compiled_hashes, strict=True)
    return GrammarCommand(
        tuple(Grammar(text, key) for text, key in columns), tuple(message.released)
    )
