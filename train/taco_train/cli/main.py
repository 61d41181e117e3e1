"""The command `taco_train`: one subcommand a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from taco_train.cli import doctor, emulate


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taco_train", description="Distributed training on slow networks."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (emulate, doctor):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a subcommand, and exits with its code."""
    options = make_parser().parse_args(arguments)
    sys.exit(options.run(options))
