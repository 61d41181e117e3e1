"""The `taco_llm` command."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import taco_llm
from taco_common.logging import configure_logging, logs_json
from taco_llm.args.flags import with_flag_names
from taco_llm.args.parser import Parser
from taco_llm.cli import (
    bench,
    certificates,
    chat,
    complete,
    convert,
    draft_worker,
    gateway,
    keys,
    plan,
    scheduler,
    serve,
    version,
    worker,
)
from taco_llm.cli import license as license_command
from taco_proto.errors import ArgumentError, ConfigurationError
from taco_proto.log_text import escape

LOGGER = logging.getLogger("taco.cli")

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_COMMANDS = (
    serve,
    chat,
    complete,
    gateway,
    scheduler,
    worker,
    draft_worker,
    keys,
    certificates,
    license_command,
    bench,
    plan,
    convert,
    version,
)


def build_parser() -> Parser:
    """The parser of the whole command; a parse holds only what was given (see `flags.Parser`)."""
    parser = Parser(
        prog="taco_llm",
        description="TACO serves large language models: an OpenAI-compatible gateway, a scheduler "
        "and workers.",
    )
    parser.add_argument(
        "--version",
        action=_PrintVersion,
        nargs=0,
        help="Print the version of TACO and exit.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Wrong flags exit with 2 and one line.

    Ctrl-C ends it with 130, without a traceback.
    """
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    if os.getpid() == 1:
        # The first process of a container is not ended by a signal that it has no handler for, and
        # a service installs its own only once it is imported.
        signal.signal(signal.SIGTERM, _end)
    namespace = build_parser().parse_args(argv)
    parser: Parser = namespace.parser
    configure_logging(namespace.command)
    # Torch logs statistics at the exit of a process that was interrupted while it imported torch.
    logging.getLogger("torch").setLevel(logging.WARNING)
    try:
        code = int(namespace.run(parser, namespace))
        sys.stdout.flush()
        return code
    except ConfigurationError as error:
        text = str(error)
        if isinstance(error, ArgumentError):
            text = with_flag_names(text, parser.names())
        if logs_json():
            LOGGER.error("%s", text)
        else:
            print(f"{parser.prog}: error: {escape(text)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Who read the output has seen enough (`| head`). Python would flush the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


class _PrintVersion(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(taco_llm.__version__)
        parser.exit()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
