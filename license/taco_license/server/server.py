"""The process of a license server: settings, listening socket, signals, periodic work."""

import asyncio
import ipaddress
import logging
import signal
import socket
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
import uvloop

from taco_common.http_server import HttpServer
from taco_license.document.keys import PublicKeys, project_keys, read_public_keys
from taco_license.errors import SettingError
from taco_license.ledger.ledger import Ledger
from taco_license.ledger.local_ledger import LocalLedger
from taco_license.ledger.sqlite_store import DATABASE, Store
from taco_license.server.app import TokenReader, create_app
from taco_license.server.http_protocol import BoundedHttpProtocol
from taco_license.server.role_protocol import RoleHttpProtocol
from taco_license.server.service import LicenseService
from taco_license.tls import TlsFiles, server_context
from taco_proto.config import RedisConfig

logger = logging.getLogger("taco.license")

BACKLOG = 2048
MAX_CONNECTIONS = 4096  # further connections get 503
CLOSE_SECONDS = 5  # running requests may finish within this time after SIGTERM


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseServerConfig:
    """Settings of a license server. Exactly one of `data_dir` and `redis` is given.

    Attributes:
        data_dir: directory of the license, the leases and the audit log of a single server.
        redis: the storage that several servers share.
        public_keys: files of the trusted issuers' keys; empty means the keys of the project.
        admin_token_file: file with the token that a client must send to replace the license. It is
            read at each upload. None: no token is needed.
        tls: mutual TLS, in which certificates prove the roles of clients; None: plain HTTP.
    """

    host: str
    port: int
    data_dir: str | None = None
    redis: RedisConfig | None = None
    public_keys: tuple[str, ...] = ()
    admin_token_file: str | None = None
    tls: TlsFiles | None = None


def run_license_server(config: LicenseServerConfig) -> None:
    """Runs the server until SIGTERM or SIGINT.

    Raises:
        LicenseError: a key file cannot be used.
        SettingError, ConfigurationError: another setting cannot be used.
    """
    keys = trusted_keys(config.public_keys)
    path = config.admin_token_file
    token = None if path is None else token_reader(path)
    with (
        _listen(config.host, config.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        service = LicenseService(_open_ledger(config, keys), keys)
        runner.run(_serve(service, http_server(service, token, config.tls), listener))


def trusted_keys(paths: Iterable[str]) -> PublicKeys:
    """The public keys in the files; without files, the keys of the project."""
    return read_public_keys(paths) or project_keys()


def _open_ledger(config: LicenseServerConfig, keys: PublicKeys) -> Ledger:
    if config.redis is None:
        assert config.data_dir is not None
        return _open_local_ledger(config.data_dir, keys)
    from taco_license.ledger.redis_ledger import (
        RedisLedger,  # imported here: a single server needs no redis package
    )

    return RedisLedger(config.redis, keys)


def _open_local_ledger(directory: str, keys: PublicKeys) -> LocalLedger:
    store = Store(directory)
    try:
        return LocalLedger(store, keys)
    except sqlite3.Error as error:
        store.close()
        raise SettingError(f"cannot use {Path(directory) / DATABASE}: {error}") from None


async def _serve(service: LicenseService, server: uvicorn.Server, listener: socket.socket) -> None:
    def end() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    host, port = listener.getsockname()[:2]
    scheme = "http" if server.config.ssl is None else "https"
    logger.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
    if server.config.ssl is None and not ipaddress.ip_address(host).is_loopback:
        logger.warning(
            "the license server listens without TLS: anyone who reaches this port can take seats; "
            "give --tls-ca-file, --tls-cert-file and --tls-key-file"
        )
    await service.ledger.start()
    ticking = asyncio.create_task(_tick(service))
    try:
        await server.serve(sockets=[listener])
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
        await service.ledger.close()


async def _tick(service: LicenseService) -> None:
    while True:
        try:
            await service.tick()
        except Exception:  # an error here must not end the periodic work
            logger.exception("periodic work failed; the server tries again")
        await asyncio.sleep(service.ledger.tick_seconds)


def http_server(
    service: LicenseService, admin_token: TokenReader | None = None, tls: TlsFiles | None = None
) -> uvicorn.Server:
    """The HTTP server. It serves the sockets given to `serve` until `should_exit` is set.

    Args:
        admin_token: see `create_app`.

    Raises:
        SettingError: the TLS files cannot be used.
    """
    config = uvicorn.Config(
        create_app(service, admin_token, tls),
        http=BoundedHttpProtocol if tls is None else RoleHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    config.load()
    if tls is not None:
        try:
            config.ssl = server_context(tls)
        except OSError as error:
            raise SettingError(f"the TLS files cannot be used: {error}") from None
    return HttpServer(config)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise SettingError(f"cannot listen on {host} port {port}: {error}") from None


def token_reader(path: str) -> TokenReader:
    """A function that reads the token from a file, which may change.

    Raises:
        SettingError: the file cannot be read or contains no token. The reader raises it as well.
    """
    reader = partial(_read_token, path)
    reader()
    return reader


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise SettingError(f"cannot read {path}: {reason}") from None
    if not token:
        raise SettingError(f"{path} contains no token: write one line with a secret")
    return token
