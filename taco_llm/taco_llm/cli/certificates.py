"""`taco_llm certificates …`: an authority and certificates for mutual TLS between services."""

import argparse
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from taco_common.tls import Role
from taco_llm.args.parser import Parser
from taco_llm.cli.options import Subparsers, collect
from taco_proto.errors import ConfigurationError

DEFAULT_DAYS = 365

Command = Callable[[dict[str, Any]], None]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "certificates",
        help="Make the certificates by which services know each other.",
        description="Makes an authority, and certificates by which services know each other "
        "(--tls-ca-file, --tls-cert-file, --tls-key-file), for those without an authority of "
        "their own.",
    )
    commands = parser.add_subparsers(dest="certificates_command", metavar="COMMAND", required=True)
    _add_command(commands, "init", _init, "Make an authority: ca.crt and ca.key.")
    issue = _add_command(
        commands,
        "issue",
        _issue,
        "Make a certificate and its key, ROLE.crt and ROLE.key, in place of older ones.",
    )
    issue.add_argument(
        "role",
        metavar="ROLE",
        choices=[role.value for role in Role],
        help=f"What it proves: {', '.join(Role)}.",
    )
    issue.add_argument(
        "--days",
        type=int,
        metavar="DAYS",
        help=f"How long it is valid. Default: {DEFAULT_DAYS}.",
    )
    issue.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="A host name or IP address to be valid for as well, for callers that check it, such "
        "as curl. Give the flag once a name.",
    )


def _add_command(commands: Subparsers, name: str, command: Command, help_text: str) -> Parser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument("directory", metavar="DIR", help="Where the authority's files are.")

    def run(parser: Parser, namespace: argparse.Namespace) -> int:
        command(collect(parser, namespace))
        return 0

    parser.set_defaults(run=run, parser=parser)
    return parser


def _init(values: dict[str, Any]) -> None:
    from taco_llm.certificates import make_authority

    directory = Path(values["directory"])
    make_authority(directory)
    print(f"{directory / 'ca.crt'} for every service, {directory / 'ca.key'} (keep it secret)")


def _issue(values: dict[str, Any]) -> None:
    from taco_llm.certificates import issue

    directory, role = Path(values["directory"]), Role(values["role"])
    days = values.get("days", DEFAULT_DAYS)
    if not 0 < days <= 36500:
        raise ConfigurationError(f"--days must be between 1 and 36500, got {days}")
    end = issue(directory, role, timedelta(days), values.get("host", ()))
    print(f"{directory / role}.crt and {directory / role}.key, until {end:%Y-%m-%d}")
