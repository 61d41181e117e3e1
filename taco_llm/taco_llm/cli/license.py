"""`taco_llm license`: make an issuer's keys, sign licenses, and run the license server."""

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
# A worker waits 5 times as long for the license server's answer.
REDIS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """Options of `taco_llm license keygen`."""

    private_key: str = flag(
        "Output file of the private key, which signs licenses. Keep it secret: anyone who has it "
        "can issue licenses.",
        default="license.key",
        metavar="FILE",
    )
    public_key: str = flag(
        "Output file of the public key, for --public-key of license servers.",
        default="license.pub",
        metavar="FILE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueOptions:
    """Options of `taco_llm license issue`."""

    request: Sequence[str] = flag(
        "Request files: the output of `nvidia-smi -L` on each machine, and one line with an id for "
        "each host without a GPU.",
        several="extend",
        metavar="FILE",
    )
    customer: str = flag("Name of the customer, written into the license.", metavar="NAME")
    appid: str = flag("The customer's id with the issuer, written into the license.", metavar="ID")
    expires: str = flag(
        "Expiry of the license: its last day such as 2026-12-31, a time such as "
        "2026-12-31T18:00:00+08:00, or days from now such as 365d.",
        metavar="TIME",
    )
    access_limit: int = flag(
        "Number of seats: maximum GPUs that may serve at the same time; 0 means no limit.",
        default=0,
        parse=int,
        metavar="GPUS",
    )
    private_key: str = flag(
        "Private key of the issuer, made by `taco_llm license keygen`.",
        default="license.key",
        metavar="FILE",
    )
    serial: int | None = flag(
        "Serial number of the license. A server accepts only a higher serial than that of its "
        "current license. Default: milliseconds since 1970.",
        default=None,
        parse=int,
        metavar="NUMBER",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of `taco_llm license serve`."""

    host: str = flag("Address to listen on.", default="0.0.0.0")
    port: int = flag("TCP port to listen on.", default=10080, parse=int)
    data_dir: str | None = flag(
        "Directory of the license, the leases and the audit log. Each server needs its own. "
        f"Default: {DATA_DIR}.",
        default=None,
        metavar="DIR",
    )
    redis_url: str | None = flag(
        "URL of Redis, in which several license servers share the license, the leases and the "
        "audit log instead of --data-dir: redis://host:6379/0, rediss:// with TLS, or "
        "unix:///path.",
        default=None,
        metavar="URL",
    )
    redis_password_file: str | None = flag(
        "File with the password of Redis. Use it to keep the password out of the URL.",
        default=None,
        metavar="FILE",
    )
    public_key: Sequence[str] = flag(
        "Files with the public keys of the issuers that this server trusts. Default: the two keys "
        "of the TACO project.",
        default=(),
        several="extend",
        metavar="FILE",
    )
    admin_token_file: str | None = flag(
        "File with a token that a client must send to replace the license (Authorization: Bearer "
        "TOKEN). Default: no token, anyone with a newer license can replace it.",
        default=None,
        metavar="FILE",
    )


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "license",
        help="Issue licenses, and run the license server.",
        description="Makes the keys of an issuer, signs licenses for GPUs, and runs the license "
        "server, which grants GPUs seats under a license.",
    )
    commands = parser.add_subparsers(dest="license_command", metavar="COMMAND", required=True)
    _add_command(
        commands, "keygen", _keygen, KeyOptions, "Make the key pair of an issuer (Ed25519)."
    )
    issue = _add_command(commands, "issue", _issue, IssueOptions, "Sign a license for GPUs.")
    issue.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="Output file of the license. Default: license-taco_APPID-CUSTOMER-TIME.dat.",
    )
    serve = _add_command(
        commands,
        "serve",
        _serve,
        ServeOptions,
        "Run the license server, from which workers lease seats.",
    )
    add_config_argument(serve)
    add_flags(serve, "TLS between services", TlsArgs)
    add_log_flags(serve)


def _add_command(
    commands: Subparsers, name: str, command: Command, table: type, help_text: str
) -> Parser:
    parser = commands.add_parser(name, help=help_text, description=help_text)
    parser.usage = f"taco_llm license {name} [options]"
    add_flags(parser, "license", table)

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
        raise ConfigurationError(
            "--data-dir and --redis-url contradict each other: a license server stores its "
            "license in one of them"
        )
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
