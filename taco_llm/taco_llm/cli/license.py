"""`taco_llm license …`: make an issuer's keys, issue licenses, and serve them to workers."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from taco_common.tls import Role
from taco_llm.args.flags import add_flags, flag, given
from taco_llm.args.parser import Parser
from taco_llm.args.redis_args import RedisArgs
from taco_llm.args.tls_args import TlsArgs
from taco_llm.cli.options import (
    Subparsers,
    add_config_argument,
    add_log_flags,
    collect,
    require,
)
from taco_proto.errors import ConfigurationError

Command = Callable[[dict[str, Any]], None]

DATA_DIR = "taco-license"
# A worker waits for its answer five times as long.
REDIS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    private_key: str = flag(
        "Where the private key goes, with which licenses are signed. Whoever has it can issue.",
        default="license.key",
        metavar="FILE",
    )
    public_key: str = flag(
        "Where the public key goes, which license servers are given.",
        default="license.pub",
        metavar="FILE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueOptions:
    request: Sequence[str] = flag(
        "Files with the output of `nvidia-smi -L`, of one machine or many, and a line with an id "
        "for each host without a GPU.",
        several="extend",
        metavar="FILE",
    )
    customer: str = flag("Who the license is for.")
    appid: str = flag("The customer's id with the issuer.")
    expires: str = flag(
        "Until when it is good: a day, which is its last; a time such as "
        "2026-12-31T18:00:00+08:00; or days from now such as 365d.",
        metavar="TIME",
    )
    access_limit: int = flag(
        "The most GPUs at once. 0: no limit.", default=0, parse=int, metavar="GPUS"
    )
    private_key: str = flag(
        "The issuer's private key, of `taco_llm license keygen`.",
        default="license.key",
        metavar="FILE",
    )
    serial: int | None = flag(
        "A server takes no license whose serial is not above that of the one before. Default: the "
        "milliseconds since 1970.",
        default=None,
        parse=int,
        metavar="NUMBER",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    host: str = flag("Address to listen on.", default="0.0.0.0")
    port: int = flag("Port to listen on.", default=10080, parse=int)
    data_dir: str | None = flag(
        "Directory of the license, the leases and the audit log. One server's alone. Default: "
        "taco-license.",
        default=None,
        metavar="DIRECTORY",
    )
    redis_url: str | None = flag(
        "Redis, in which several servers share what else stands in the directory: "
        "redis://host:6379/0, rediss:// with TLS, or unix:///path.",
        default=None,
        metavar="URL",
    )
    redis_password_file: str | None = flag(
        "File with the password of Redis, so that it need not stand in the URL.",
        default=None,
        metavar="FILE",
    )
    public_key: Sequence[str] = flag(
        "Files with the public keys of those who may issue licenses for this server, and of nobody "
        "else. Default: the project's two.",
        default=(),
        several="extend",
        metavar="FILE",
    )
    admin_token_file: str | None = flag(
        "File with a token. Whoever replaces the license must send it: Authorization: Bearer "
        "TOKEN. Default: anybody may, who has a license.",
        default=None,
        metavar="FILE",
    )


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "license",
        help="Issue licenses, and run the server that workers ask.",
        description="Makes the keys of an issuer, issues licenses for GPUs, and runs the server "
        "that says which GPUs may serve.",
    )
    commands = parser.add_subparsers(dest="license_command", metavar="COMMAND", required=True)
    _add_command(commands, "keygen", _keygen, KeyOptions, "Make an issuer's pair of keys.")
    issue = _add_command(commands, "issue", _issue, IssueOptions, "Sign a license for GPUs.")
    issue.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="Where the license goes. Default: license-taco_APPID-CUSTOMER-TIME.dat.",
    )
    serve = _add_command(
        commands, "serve", _serve, ServeOptions, "Run the license server, which workers ask."
    )
    add_config_argument(serve)
    add_flags(serve, "TLS between services", TlsArgs)
    add_log_flags(serve)


def _add_command(
    commands: Subparsers, name: str, command: Command, table: type, help_text: str
) -> Parser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    add_flags(parser, "options", table)

    def run(parser: Parser, namespace: argparse.Namespace) -> int:
        values = collect(parser, namespace)

        from taco_license.errors import LicenseError, SettingError

        try:
            command(values)
        except (LicenseError, SettingError) as error:
            raise ConfigurationError(str(error)) from None
        return 0

    parser.set_defaults(run=run, parser=parser)
    return parser


def _keygen(values: dict[str, Any]) -> None:
    from taco_license.document.keys import write_key_pair

    options = KeyOptions(**given(KeyOptions, values))
    name = write_key_pair(options.private_key, options.public_key)
    print(f"key {name}: {options.private_key} (keep it secret), {options.public_key}")


def _issue(values: dict[str, Any]) -> None:
    from taco_license.document.issue import file_name, issue
    from taco_license.document.keys import read_private_key
    from taco_license.document.request_file import parse_request

    for name in ("request", "customer", "appid", "expires"):
        require(values, name, f"--{name} is needed")
    options = IssueOptions(**given(IssueOptions, values))
    now = datetime.now().astimezone()
    gpus = parse_request("\n".join(map(_read_text, options.request)))
    document = issue(
        gpus,
        read_private_key(options.private_key),
        app_id=options.appid,
        customer=options.customer,
        expires=options.expires,
        access_limit=options.access_limit,
        now=now,
        serial=options.serial,
    )
    path = values.get("output", file_name(options.appid, options.customer, now))
    try:
        Path(path).write_bytes(document)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None
    print(f"{path}: {len(gpus)} GPUs")


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigurationError(f"cannot read {path}: {reason}") from None


def _serve(values: dict[str, Any]) -> None:
    from taco_license.server.server import LicenseServerConfig, run_license_server
    from taco_license.tls import TlsFiles

    options = ServeOptions(**given(ServeOptions, values))
    redis = RedisArgs(
        redis_url=options.redis_url,
        redis_password_file=options.redis_password_file,
        redis_timeout=REDIS_SECONDS,
    ).redis_config()
    if redis is not None and options.data_dir is not None:
        raise ConfigurationError("--data-dir and --redis-url: a server has one of the two")
    tls = TlsArgs(**given(TlsArgs, values)).tls_config(Role.LICENSE_SERVER)
    run_license_server(
        LicenseServerConfig(
            host=options.host,
            port=options.port,
            data_dir=(options.data_dir or DATA_DIR) if redis is None else None,
            redis=redis,
            public_keys=tuple(options.public_key),
            admin_token_file=options.admin_token_file,
            tls=None if tls is None else TlsFiles(tls.ca_file, tls.cert_file, tls.key_file),
        )
    )
