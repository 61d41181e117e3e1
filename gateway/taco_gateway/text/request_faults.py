"""Which field of a request is at fault where the engine fails it."""

from collections.abc import Callable, Mapping

from taco_gateway.text.response.response_parser import ParserOptions
from taco_proto.grammars import Grammar
from taco_proto.logits_processors import EXTRA_ARGS
from taco_proto.sampling_params import SamplingParams
from taco_proto.structured_outputs import PARAM

# Fields that keep tokens out of the text, beside the grammar.
_EXCLUDING = ("allowed_token_ids", "bad_words", "no_repeat_ngram_size", "min_tokens")
_OF_ARGUMENTS = "invalid_arguments"
_OF_GRAMMAR = frozenset({"grammar_limit", "invalid_grammar"})
_OF_ALL = "no_allowed_token"


def field_at_fault(
    params: SamplingParams,
    client_names: Mapping[str, str],
    grammar: Grammar | None,
    parsing: ParserOptions | None,
) -> Callable[[str], str | None]:
    """A function from the reason of an engine's error to the field at fault.

    The function returns None if the reason does not tell, or if several fields may be the cause.

    Args:
        client_names: the client's names of fields, where they differ from those of `params`.
        grammar: of the text.
        parsing: if it has tools, the grammar may be one of their calls.
    """
    has_tools = parsing is not None and parsing.tools is not None
    is_constraint = params.structured_outputs is not None and not has_tools
    of_grammar = [] if grammar is None else [PARAM if is_constraint else None]

    def field(reason: str) -> str | None:
        found: list[str | None] = []
        if reason == _OF_ARGUMENTS:
            found = [EXTRA_ARGS]
        elif reason in _OF_GRAMMAR:
            found = [*of_grammar]
        elif reason == _OF_ALL:
            found = [*of_grammar, *(name for name in _EXCLUDING if getattr(params, name))]
        if len(found) != 1 or found[0] is None:
            return None
        return client_names.get(found[0], found[0])

    return field
