"""Mutual TLS between the license server and its clients; uses the standard library alone.

A certificate proves a role if its names include `<role>.taco.internal` and the trusted authority
signed it. Each new connection reads the files again, so a renewed certificate needs no restart.
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
    """Paths of the PEM files: trusted authorities, own certificate, own private key."""

    ca_file: str
    cert_file: str
    key_file: str


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A client context that trusts only the authorities in the files and checks the host name.

    Raises:
        OSError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, files)
    return context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A server context that requires client certificates. Each handshake uses the current files.

    If a changed file cannot be used, the server logs an error and keeps the previous certificate.

    Raises:
        OSError: a file cannot be used now.
    """
    renewal = _Renewal(files)
    context = renewal.current
    context.sni_callback = renewal
    return context


def roles_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The roles that a peer's certificate proves; `certificate` is the result of `getpeercert`."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(
        name.removesuffix(DOMAIN) for kind, name in names if kind == "DNS" and name.endswith(DOMAIN)
    )


class _Renewal:
    """Reloads changed TLS files. An SNI callback: ssl calls it at the start of each handshake,
    also if the client names no host.
    """

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
            logger.error("cannot reload the TLS files; the old certificate stays in use: %s", error)
        if self.current is not context:
            connection.context = self.current


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    # Session tickets are off: a resumed session would not send its certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(files.ca_file)
    # The empty password keeps ssl from asking for one on the terminal.
    context.load_cert_chain(files.cert_file, files.key_file, password="")


def _versions(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    """Inode, modification time and size of each file; they change when a file is replaced."""
    stats = (Path(path).stat() for path in (files.ca_file, files.cert_file, files.key_file))
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
