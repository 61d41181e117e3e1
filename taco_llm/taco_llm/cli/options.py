"""Options that commands share: MODEL, --config, compatibility flags; and the merge of options."""

import argparse
import logging
from typing import Any, TypeAlias

from taco_common.logging import configure_logging
from taco_llm.args.compatibility import COMPATIBILITY, drop_compatibility_arguments
from taco_llm.args.flags import add_flags, flag_name, given, or_none
from taco_llm.args.log_args import LogArgs
from taco_llm.args.parser import COMPATIBILITY_GROUP, Parser
from taco_llm.cli.config_file import read_config_file
from taco_proto.errors import ConfigurationError

# The class takes a type argument only for type checkers.
Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

# Entries of the parsed namespace that are not options: main() finds the command by them.
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
    """Adds the positional MODEL. The flag --model means the same."""
    parser.add_argument(
        "model_tag",
        metavar="MODEL",
        nargs="?",
        help="Model to serve: a directory, a Hugging Face hub id, a GGUF file, or a bundled model "
        "such as demo.",
    )


def add_scheduler_argument(parser: Parser, more: str = "") -> None:
    """Adds --scheduler; `more` is appended to its help."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help=f"Address of the scheduler to connect to, host:port or unix:/path.{more}",
    )


def add_config_argument(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with options of this command, such as port: 8000. Flags on the command "
        "line override the file.",
    )


def add_log_flags(parser: Parser) -> None:
    """Adds --log-format and --log-level, which `collect` applies."""
    add_flags(parser, "logging", LogArgs)


def add_compatibility_flags(parser: Parser) -> None:
    """Adds vLLM's flags of `COMPATIBILITY` that this command does not have itself."""
    group = parser.group(COMPATIBILITY_GROUP)
    for name, argument in COMPATIBILITY.items():
        flag = "--" + name.replace("_", "-")
        if parser.has_flag(flag):
            continue
        if argument.is_switch:
            parser.add_switch(group, flag, argument.help)
            continue
        names = [flag] if argument.short is None else [argument.short, flag]
        group.add_argument(
            *names,
            type=or_none(argument.parse or str),
            nargs="+" if argument.takes_several else None,
            metavar="VALUE",
            help=argument.help,
        )


def collect(parser: Parser, namespace: argparse.Namespace) -> dict[str, Any]:
    """Merges the options of the command line and of the configuration file.

    The command line overrides the file. Logging is configured first, with the merged options.

    Raises:
        ConfigurationError: the file cannot be used, two models are given, or a flag asks for a
            missing feature.
    """
    values = _options(vars(namespace))
    path = values.pop("config", None)
    if path is not None:
        values = {**_file_values(parser, path), **values}
    if parser.has_flag("--log-format"):
        given_log = {n: v for n, v in given(LogArgs, values).items() if v is not None}
        configure_logging(service_of(parser), LogArgs(**given_log).log_config())
    foreign = parser.names_in(COMPATIBILITY_GROUP)
    drop_compatibility_arguments(
        {name: value for name, value in values.items() if name in foreign}, LOGGER, flag_name
    )
    # The value None means the default.
    return {
        name: value for name, value in values.items() if name not in foreign and value is not None
    }


def service_of(parser: Parser) -> str:
    """The name in log lines of the service that the parser's command runs."""
    return parser.prog.removeprefix("taco_llm ")


def _file_values(parser: Parser, path: str) -> dict[str, Any]:
    # Errors in the file name the file.
    file_parser_name, parser.prog = parser.prog, f"{parser.prog}: {path}"
    try:
        values = vars(parser.parse_args(read_config_file(path)))
    finally:
        parser.prog = file_parser_name
    if "config" in values:
        raise ConfigurationError(f"{path} names another configuration file")
    return _options(values)


def _options(values: dict[str, Any]) -> dict[str, Any]:
    """The options in `values`; the positional MODEL becomes the option `model`."""
    values = {name: value for name, value in values.items() if name not in _DISPATCH}
    tag = values.pop("model_tag", None)
    if tag is not None:
        if values.get("model", tag) != tag:
            raise ConfigurationError(
                f"two models are given, {tag} and {values['model']}: give one of them"
            )
        values["model"] = tag
    return values


def require(values: dict[str, Any], name: str, message: str) -> None:
    """Raises ConfigurationError with `message` if the option `name` was not given."""
    if name not in values:
        raise ConfigurationError(message)
