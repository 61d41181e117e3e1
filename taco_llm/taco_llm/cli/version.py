"""`taco_llm version`."""

import argparse

import taco_llm
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    help_text = "Print the version of TACO and exit."
    parser = subparsers.add_parser("version", help=help_text, description=help_text)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    print(taco_llm.__version__)
    return 0
