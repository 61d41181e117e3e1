"""The admin listener over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.admin_pages import HEADERS, exchange, get
from support.patience import PATIENCE_SECONDS
from taco_common import admin
from taco_common.admin import serving_admin
from taco_proto.errors import ConfigurationError


@dataclass(slots=True)
class Service:
    reason: str | None = None
    exposition: bytes = b"x 1\n"
    path: str = ""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def metrics(self) -> bytes:
        if not self.exposition:
            raise RuntimeError("no metrics")
        return self.exposition

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.path)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, request: str) -> bytes:
        return await exchange(self.path, request.encode())

    async def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        return await get(self.path, path, method)


async def all_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await reader.read()


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Service]:
    service = Service(path=f"{directory}/admin.sock")
    address = f"unix:{service.path}"
    async with serving_admin(address, lambda: service.reason, service.metrics):
        yield service
    for writer in service.writers:
        writer.close()


async def test_probes_and_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        assert await service.get("/livez") == (200, b'{"alive":true}')
        assert await service.get("/readyz?verbose") == (200, b'{"ready":true}')
        assert await service.get("/metrics") == (200, b"x 1\n")
        service.reason = "draining"
        status, body = await service.get("/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "draining"})
        assert (await service.get("/livez"))[0] == 200
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240


async def test_unknown_routes_and_malformed_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        assert (await service.get("/"))[0] == 404
        assert (await service.get("/drain", "POST"))[0] == 404
        assert (await service.get("/metrics", "POST"))[0] == 405
        refused = await service.ask(f"PUT /livez HTTP/1.1\r\n{HEADERS}\r\n")
        assert b"HTTP/1.1 405 " in refused
        assert b"\r\nallow: " in refused
        for request in ("GET /livez HTTP/1.1\r\n\r\n", "GET /livez SPDY/3\r\n\r\n"):
            assert (await service.ask(request)).startswith(b"HTTP/1.1 400 ")
        service.exposition = b""
        assert (await service.get("/metrics"))[0] == 500
        assert (await service.get("/livez"))[0] == 200


async def test_a_long_page_arrives_whole_and_a_long_head_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        service.exposition = b"x 1\n" * 1_000_000
        status, body = await service.get("/metrics")
        assert (status, len(body)) == (200, 4_000_000)
        reader, writer = await service.connect()
        writer.write(b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 5000)
        assert (await all_of(reader)).startswith(b"HTTP/1.1 431 ")


async def test_clients_that_send_nothing_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_HEADER_SECONDS", 0.05)
    async with serving(tmp_path) as service:
        reader, _ = await service.connect()
        assert await all_of(reader) == b""
        reader, writer = await service.connect()
        writer.write(b"GET /livez")
        assert (await all_of(reader)).startswith(b"HTTP/1.1 408 ")


async def test_the_oldest_idle_connection_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_MAX_CONNECTIONS", 2)
    monkeypatch.setattr(admin, "_HEADER_SECONDS", PATIENCE_SECONDS)
    async with serving(tmp_path) as service:
        clients = [await service.connect() for _ in range(5)]
        (_, *_, (last, writer)) = clients
        for reader, _ in clients[:3]:
            assert await all_of(reader) == b""
        assert (await service.get("/livez"))[0] == 200
        assert await all_of(clients[3][0]) == b""
        writer.write(f"GET /livez HTTP/1.1\r\n{HEADERS}\r\n".encode())
        assert (await all_of(last)).startswith(b"HTTP/1.1 200 ")


async def test_clients_that_read_nothing_keep_others_out_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_MAX_CONNECTIONS", 1)
    async with serving(tmp_path) as service:
        service.exposition = b"x 1\n" * 1_000_000
        reader, writer = await service.connect()
        writer.write(f"GET /metrics HTTP/1.1\r\n{HEADERS}\r\n".encode())
        assert await reader.readexactly(8) == b"HTTP/1.1"
        second, _ = await service.connect()
        assert await all_of(second) == b""
        assert len(await all_of(reader)) > 4_000_000


async def test_an_address_in_use_is_an_error_of_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"cannot listen on {address}"):
            async with serving_admin(address, lambda: None, Service().metrics):
                pass
