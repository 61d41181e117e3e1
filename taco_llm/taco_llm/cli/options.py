"""What the commands' parsers share: the model argument, --config, superseded flags, merging."""

import argparse
import logging
from collections.abc import Collection
from typing import Any, TypeAlias

from taco_llm.cli.config_file import read_config_file
from taco_llm.flags import Parser
from taco_llm.superseded import SUPERSEDED, report_superseded
from taco_proto.errors import ConfigurationError

# The class takes a type argument only for type checkers.
Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

# What main() needs to find the command, beside the options.
_DISPATCH = frozenset(
    {
        "command",
        "bench_command",
        "keys_command",
        "certificates_command",
        "license_command",
        "run",
        "parser",
    }
)

LOGGER = logging.getLogger("taco.cli")


def add_model_argument(parser: Parser) -> None:
    """The positional MODEL; the flag --model says the same."""
    parser.add_argument(
        "model_tag",
        metavar="MODEL",
        nargs="?",
        help="The model: a directory, a Hugging Face hub id, or a bundled model such as demo.",
    )


def add_scheduler_argument(parser: Parser, more: str = "") -> None:
    """`more` is said of it behind what is true for every command."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help=f"Address of the scheduler to dial, host:port or unix:/path.{more}",
    )


def add_config_argument(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with options of this command, for example port: 8000. Flags on the command "
        "line win over the file.",
    )


def add_superseded_flags(parser: Parser, taken: Collection[str] = ()) -> None:
    """Flags that are accepted and have no effect any more, but those that are `taken`."""
    group = parser.add_argument_group("superseded flags, accepted with one log line each")
    for name, superseded in SUPERSEDED.items():
        if name in taken:
            continue
        parser.superseded.add(name)
        flag = "--" + name.replace("_", "-")
        help_text = "No effect. " + superseded.instead
        if superseded.takes_value:
            group.add_argument(flag, metavar="VALUE", help=help_text)
        else:
            parser.switches.add(flag.removeprefix("--"))
            group.add_argument(flag, action=argparse.BooleanOptionalAction, help=help_text)


def collect(parser: Parser, namespace: argparse.Namespace) -> dict[str, Any]:
    """The options that were given; those of the command line win over the configuration file.

    Raises:
        ConfigurationError: the file is unusable, or two models are named.
    """
    values = _options(vars(namespace))
    path = values.pop("config", None)
    if path is not None:
        values = {**_file_values(parser, path), **values}
    report_superseded([name for name in values if name in parser.superseded], LOGGER)
    return values


def _file_values(parser: Parser, path: str) -> dict[str, Any]:
    # The file's own errors name the file, in the parser's one line.
    file_parser_name, parser.prog = parser.prog, f"{parser.prog}: {path}"
    try:
        values = vars(parser.parse_args(read_config_file(path)))
    finally:
        parser.prog = file_parser_name
    if "config" in values:
        raise ConfigurationError(f"{path} names another configuration file")
    return _options(values)


def _options(values: dict[str, Any]) -> dict[str, Any]:
    """The options among `values`, the positional MODEL under the name of its flag."""
    values = {name: value for name, value in values.items() if name not in _DISPATCH}
    tag = values.pop("model_tag", None)
    if tag is not None:
        if values.get("model", tag) != tag:
            raise ConfigurationError(f"two models are named: {tag} and {values['model']}")
        values["model"] = tag
    return values


def require(values: dict[str, Any], name: str, message: str) -> None:
    """Raises ConfigurationError with `message` where the option `name` was not given."""
    if name not in values:
        raise ConfigurationError(message)
