"""`taco_llm certificates`: an authority and certificates for mutual TLS between services."""

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
        help="Make certificates for mutual TLS between services.",
        description="Makes a certificate authority and certificates for mutual TLS between "
        "services (--tls-ca-file, --tls-cert-file, --tls-key-file). Use it if you have no "
        "certificate authority.",
    )
    commands = parser.add_subparsers(dest="certificates_command", metavar="COMMAND", required=True)
    _add_command(commands, "init", _init, "Make a certificate authority: ca.crt and ca.key.")
    issue = _add_command(
        commands,
        "issue",
        _issue,
        "Make a certificate and its key, ROLE.crt and ROLE.key. Older ones are replaced.",
    )
    issue.add_argument(
        "role",
        metavar="ROLE",
        choices=[role.value for role in Role],
        help=f"Role that the certificate proves: {', '.join(Role)}.",
    )
    issue.add_argument(
        "--days",
        type=int,
        metavar="DAYS",
        help=f"Days that the certificate is valid. Default: {DEFAULT_DAYS}.",
    )
    issue.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="Host name or IP address that the certificate is also valid for, for clients that "
        "check it, such as curl. Repeat the flag for several names.",
    )


def _add_command(commands: Subparsers, name: str, command: Command, help_text: str) -> Parser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.add_argument("directory", metavar="DIR", help="Directory of the authority's files.")

    def run(parser: Parser, namespace: argparse.Namespace) -> int:
        command(collect(parser, namespace))
        return 0

    parser.set_defaults(run=run, parser=parser)
    return parser


def _init(values: dict[str, Any]) -> None:
    from taco_llm.certificates import make_authority

    directory = Path(values["directory"])
    make_authority(directory)
    print(f"{directory / 'ca.crt'} (for every service), {directory / 'ca.key'} (keep it secret)")


def _issue(values: dict[str, Any]) -> None:
    from taco_llm.certificates import issue

    directory, role = Path(values["directory"]), Role(values["role"])
    days = values.get("days", DEFAULT_DAYS)
    if not 0 < days <= 36500:
        raise ConfigurationError(f"--days must be between 1 and 36500, got {days}")
    end = issue(directory, role, timedelta(days), values.get("host", ()))
    print(f"{directory / role}.crt and {directory / role}.key, valid until {end:%Y-%m-%d}")
