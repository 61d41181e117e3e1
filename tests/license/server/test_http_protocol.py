"""Limits of the license server's connections: sizes and timeouts."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import make_certificates, tls_config
from support.license_server import LicenseServer
from support.licenses import Clock
from support.patience import PATIENCE_SECONDS
from taco_common.tls import Role
from taco_license.server import http_protocol
from taco_license.server.http_protocol import MAX_HEADER_BYTES
from taco_license.server.role_protocol import RoleHttpProtocol
from taco_license.server.server import MAX_CONNECTIONS, http_server
from taco_license.tls import TlsFiles

HEAD = b"GET / HTTP/1.1\r\nHost: l\r\n"
TRAILERS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + bytes([65]) * 70_000


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[LicenseServer]:
    with LicenseServer(tmp_path / "server", clock) as server:
        yield server


def answer(server: LicenseServer, data: bytes) -> bytes:
    """The received bytes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_headers_that_are_too_large(server: LicenseServer) -> None:
    for start in (HEAD + b"X: ", b"GET /", HEAD):
        data = start + b"y" * (MAX_HEADER_BYTES + 1 - len(start))
        assert answer(server, data).startswith(b"HTTP/1.1 431 ")


def test_idle_and_slow_connections_time_out(
    server: LicenseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "REQUEST_SECONDS", 0.05)
    assert answer(server, b"") == b""
    assert answer(server, HEAD).startswith(b"HTTP/1.1 408 ")


def test_endless_bodies_are_cut(server: LicenseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_REQUEST_BYTES", len(TRAILERS) - 1)
    monkeypatch.setattr(http_protocol, "REQUEST_SECONDS", 10 * PATIENCE_SECONDS)
    assert server._server is not None
    server._server.config.timeout_keep_alive = int(10 * PATIENCE_SECONDS)
    assert answer(server, TRAILERS).count(b"HTTP/1.1") <= 1


def test_the_limits_apply_with_tls(server: LicenseServer, tmp_path: Path) -> None:
    tls = tls_config(make_certificates(tmp_path / "tls", Role.LICENSE_SERVER), Role.LICENSE_SERVER)
    files = TlsFiles(tls.ca_file, tls.cert_file, tls.key_file)
    config = http_server(server.service, tls=files).config
    assert (config.http, config.limit_concurrency) == (RoleHttpProtocol, MAX_CONNECTIONS)
    assert issubclass(RoleHttpProtocol, http_protocol.BoundedHttpProtocol)
