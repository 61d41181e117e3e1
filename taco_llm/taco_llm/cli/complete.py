"""`taco_llm complete`: completions of a server in the terminal."""

import argparse

from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers, collect
from taco_llm.client.client_args import ClientArgs


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "complete",
        usage="taco_llm complete [TEXT] [options]",
        help="Complete a text with a running server.",
        description="Sends texts to a running server and streams the completions. With TEXT it "
        "sends that text and exits. Without TEXT it reads texts from the terminal, or one per line "
        "from a pipe.",
    )
    parser.add_argument("text", metavar="TEXT", nargs="?", help="The only text to complete.")
    add_flags(parser, "server and answers", ClientArgs)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    args = ClientArgs(**given(ClientArgs, values))

    from taco_llm.client.prompt_loop import Completions, connect, run_prompts

    client, model = connect(args)
    return run_prompts(Completions(client, model, args), model, values.get("text"))
