"""Mutual TLS between the license server and its callers, with the standard library alone.

A certificate proves a role: it names `<role>.taco.internal`, and both sides trust one authority.
Files are read again where a connection is made anew, so that a renewed certificate needs no
restart.
"""

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("taco.license")

DOMAIN = ".taco.internal"
SERVER_ROLE, WORKER_ROLE, CLIENT_ROLE = "license-server", "worker", "client"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files are: the authorities to trust, the own certificate and its key."""

    ca_file: str
    cert_file: str
    key_file: str


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Trusts the authorities of the files and no others, and checks the host name that is asked.

    Raises:
        OSError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, files)
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Takes callers with a certificate alone. Every handshake is with the files as they are then.

    Raises:
        OSError: a file cannot be used now. Later ones that cannot be used are logged, and the ones
            before hold.
    """
    renewal = _Renewal(files)
    context = renewal.current
    context.sni_callback = renewal
    return context


def roles_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The roles that a peer's certificate, as `getpeercert` gives it, proves."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(
        name.removesuffix(DOMAIN) for kind, name in names if kind == "DNS" and name.endswith(DOMAIN)
    )


class _Renewal:
    """Called at the start of each handshake, whether or not the client names a host."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = _versions(files)
        self.current = _server_context(files)

    def __call__(
        self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext
    ) -> None:
        try:
            seen = _versions(self._files)
            if seen != self._seen:
                self._seen = seen
                self.current = _server_context(self._files)
        except OSError as error:
            logger.error("the certificate stays as it was: %s", error)
        if self.current is not context:
            connection.context = self.current


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # A session that is resumed would not be asked for its certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(files.ca_file)
    # With an empty password nobody is asked for one on the terminal.
    context.load_cert_chain(files.cert_file, files.key_file, password="")


def _versions(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """What changes when a file is written or replaced."""
    stats = (Path(path).stat() for path in (files.ca_file, files.cert_file, files.key_file))
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
