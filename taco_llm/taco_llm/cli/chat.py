"""`taco_llm chat`: a conversation with a server in the terminal."""

import argparse

from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers, collect
from taco_llm.client.client_args import ChatArgs


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "chat",
        usage="taco_llm chat [MESSAGE] [options]",
        help="Chat with a running server in the terminal.",
        description="Sends messages to a running server and streams the answers. With MESSAGE it "
        "sends that message and exits. Without MESSAGE it reads messages from the terminal, or one "
        "per line from a pipe, and keeps the conversation.",
    )
    parser.add_argument("message", metavar="MESSAGE", nargs="?", help="The only message to send.")
    add_flags(parser, "server and answers", ChatArgs)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    args = ChatArgs(**given(ChatArgs, values))

    from taco_llm.client.prompt_loop import Conversation, connect, run_prompts

    client, model = connect(args)
    conversation = Conversation(client, model, args, args.system_prompt)
    return run_prompts(conversation, model, values.get("message"))
