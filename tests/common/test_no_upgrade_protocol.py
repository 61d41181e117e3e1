"""Requests with an Upgrade header, which every server answers as it answers those without."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from support.live_gateway import exchange
from support.patience import PATIENCE_SECONDS
from support.running_server import running
from taco_common.http_protocol import (
    MAX_HEADER_BYTES,
    ConnectionCounts,
    ConnectionLimits,
    http_protocol,
    plain_error,
)
from taco_common.http_server import HttpServer
from taco_license.server.http_protocol import BoundedHttpProtocol as LicenseHttpProtocol

PROTOCOLS = {
    "taco_common": http_protocol(
        ConnectionLimits(max_connections=8), ConnectionCounts(), plain_error
    ),
    "taco_license": LicenseHttpProtocol,
}

HOST = b"host: x\r\n"
# What curl --http2 and JDK's HttpClient send.
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEA\r\n"
POST = b"POST /a?b HTTP/1.1\r\n" + HOST + H2C + b"x-own: 1\r\n"
HELLO = POST + b"content-length: 5\r\n\r\nhello"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
GET = b"GET /g HTTP/1.1\r\n" + HOST
LAST = b"GET /last HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it sees of a request, in JSON."""
    body, has_more = b"", True
    while has_more:
        message = await receive()
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    seen = {
        "request": f"{scope['method']} {scope['path']} {body.decode()}",
        "query": scope["query_string"].decode(),
        "has_own": (b"x-own", b"1") in scope["headers"],
    }
    answer = json.dumps(seen).encode() + b"\n"
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture(params=PROTOCOLS)
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Of a server with one of the project's protocols."""
    async with serving(PROTOCOLS[request.param]) as number:
        yield number


@asynccontextmanager
async def serving(protocol: type[asyncio.Protocol]) -> AsyncIterator[int]:
    config = uvicorn.Config(echo, http=protocol, ws="none", lifespan="off", log_config=None)
    async with running(HttpServer(config)) as number:
        yield number


async def exchange_pieces(port: int, pieces: list[bytes]) -> bytes:
    """Sends each piece in a separate segment; returns all answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)  # else the kernel may join them
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    finally:
        writer.close()


def seen_by_app(answers: bytes) -> list[str]:
    """The requests that the application has answered."""
    lines = [line for line in answers.splitlines() if line.startswith(b"{")]
    return [json.loads(line)["request"] for line in lines]


@pytest.mark.parametrize("request_", [HELLO, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("cut", ["whole", "behind the header", "often"])
async def test_the_body_belongs_to_its_request(port: int, request_: bytes, cut: str) -> None:
    header, end, body = request_.partition(b"\r\n\r\n")
    pieces = {
        "whole": [request_],
        "behind the header": [header + end, body],
        "often": [request_[i : i + 11] for i in range(0, len(request_), 11)],
    }[cut]
    answers = await exchange_pieces(port, [*pieces, LAST])
    assert seen_by_app(answers) == ["POST /a hello", "GET /last "]
    assert b'"query": "b", "has_own": true' in answers


@pytest.mark.parametrize("together", [True, False])
async def test_a_body_that_looks_like_a_request(port: int, together: bool) -> None:
    header = POST + b"content-length: %d\r\n\r\n" % len(SMUGGLED)
    pieces = [header + SMUGGLED + LAST] if together else [header, SMUGGLED, LAST]
    seen = seen_by_app(await exchange_pieces(port, pieces))
    assert seen == [f"POST /a {SMUGGLED.decode()}", "GET /last "]


async def test_pipelined_requests(port: int) -> None:
    requests = HELLO + GET + b"\r\n" + CHUNKED + GET + H2C + b"\r\n" + HELLO + LAST
    seen = seen_by_app(await exchange(port, requests))
    hello, get = "POST /a hello", "GET /g "
    assert seen == [hello, get, hello, get, hello, "GET /last "]


async def test_very_many_pipelined_requests(port: int) -> None:
    """More in one segment than Python's limit of recursion."""
    count = 2000
    answers = await exchange(port, (GET + H2C + b"\r\n") * count + LAST)
    assert len(seen_by_app(answers)) == count + 1


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"", b"a, b/1"])
async def test_connection_close(port: int, protocol: bytes) -> None:
    request = GET + b"connection: close, upgrade\r\nupgrade: " + protocol + b"\r\n\r\n"
    answers = await exchange(port, request)  # ends: the server closes the connection
    assert seen_by_app(answers) == ["GET /g "]
    assert b"connection: close" in answers


async def test_http_1_0_stays_so(port: int) -> None:
    """It has no persistent connections, so the exchange ends."""
    request = HELLO.replace(b"HTTP/1.1", b"HTTP/1.0")
    assert seen_by_app(await exchange(port, request)) == ["POST /a hello"]


async def test_nothing_is_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await exchange(port, HELLO + LAST)
    assert not caplog.records


@pytest.mark.parametrize("target", [b"a:80", b"/a"])
async def test_connect_ends_the_connection(
    port: int, target: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    request = b"CONNECT " + target + b" HTTP/1.1\r\n" + HOST + H2C + b"\r\n"
    answers = await exchange_pieces(port, [request, SMUGGLED])
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1
    assert "pip install" not in caplog.text


async def test_the_header_is_still_checked() -> None:
    async with serving(PROTOCOLS["taco_common"]) as port:
        no_host = await exchange(port, HELLO.replace(HOST, b""))
        large = b"x: " + b"y" * MAX_HEADER_BYTES
        too_large = await exchange(port, GET + H2C + large + b"\r\n\r\n")
    assert no_host.startswith(b"HTTP/1.1 400 ")
    assert too_large.startswith(b"HTTP/1.1 431 ")
