"""Limits of HTTP connections, over real sockets: trailers, timers, number, RFC 9112."""

import asyncio
import json
import resource
from collections.abc import Awaitable, Callable

import pytest

import taco_common.admin
from support.gateway_app import App, AppMaker
from support.live_gateway import exchange, serve
from support.patience import PATIENCE_SECONDS, until
from support.scripted_engine import Hold, replay
from taco_common import http_protocol
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.http.file_descriptors import DescriptorCheck, connections_within_limit
from taco_proto.requests import FinishReason

BODY = b'{"prompt": "x"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
CLOSE = b"connection: close\r\n"


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, str]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def num_open(app: App, number: int) -> Callable[[], Awaitable[bool]]:
    """Tells whether `number` connections are open."""

    async def check() -> bool:
        return app.gateway.metrics.connections.num_open == number

    return check


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_a_trailer_is_not_a_header(make_app: AppMaker) -> None:
    app = make_app(replay([50]), api_keys=("secret",))
    request = CHUNKED + CLOSE + b"\r\n" + CHUNK + b"0\r\nauthorization: Bearer secret\r\n\r\n"
    async with serve(app) as port:
        assert status_of(await exchange(port, request)) == 401
        good = (
            CHUNKED + b"authorization: Bearer secret\r\n" + CLOSE + b"\r\n" + CHUNK + b"0\r\n\r\n"
        )
        assert status_of(await exchange(port, good)) == 200


async def test_a_trailer_is_dropped_before_the_body_is_read(make_app: AppMaker) -> None:
    """The body and its trailers wait while an earlier request runs; then they are one request."""
    app = make_app(replay([50]), api_keys=("secret",))
    pipelined = CHUNKED + b"authorization: Bearer secret\r\n\r\n" + CHUNK
    pipelined += b"0\r\nx-request-id: smuggled\r\n\r\n"
    async with serve(app) as port:
        answer = await exchange(port, pipelined + HEAD + CLOSE + b"\r\n")
    assert status_of(answer) == 200
    assert b"smuggled" not in answer


@pytest.mark.parametrize("path", ["/v1/completions", "/x"])  # answered late, and before the body
@pytest.mark.parametrize("line", [b"t: " + b"z" * 50 + b"\r\n", b"t: " + b"z" * 300_000])
async def test_trailers_are_bounded(make_app: AppMaker, path: str, line: bytes) -> None:
    app = make_app(replay([50]))
    request = CHUNKED.replace(b"/v1/completions", path.encode()) + b"\r\n" + CHUNK + b"0\r\n"
    async with serve(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        sent = 0
        closed = asyncio.ensure_future(until_closed(reader))
        while not closed.done() and sent < 2**25:
            try:
                writer.write(line * 1000 if len(line) < 1000 else line)
                await asyncio.wait_for(writer.drain(), PATIENCE_SECONDS)
            except ConnectionError:
                break
            sent += 1000 * len(line) if len(line) < 1000 else len(line)
            await asyncio.sleep(0)
        answer = await closed
        writer.close()
    assert sent < 2**25, "trailers without end are read"
    if answer:  # a reset may overtake it
        assert status_of(answer) in (404, 431)


async def test_trailers_over_the_limit_are_answered(make_app: AppMaker) -> None:
    trailer = b"t: " + b"z" * http_protocol.MAX_TRAILER_BYTES + b"\r\n\r\n"
    async with serve(make_app(replay([50]))) as port:
        answer = await exchange(port, CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + trailer)
        assert status_of(answer) == 431
        small = b"t: z\r\n\r\n"
        good = await exchange(port, CHUNKED + CLOSE + b"\r\n" + CHUNK + b"0\r\n" + small)
        assert status_of(good) == 200


async def test_endless_chunk_extensions(make_app: AppMaker) -> None:
    async with serve(make_app(replay([50]))) as port:
        request = CHUNKED + b"\r\n5;" + b"x" * 200_000
        assert status_of(await exchange(port, request)) == 431


async def test_the_admin_listener_bounds_trailers(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    request = b"GET /livez HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    request += b"".join(b"t%d: %b\r\n" % (i, b"z" * 50) for i in range(10_000)) + b"\r\n"
    async with serve(app, admin=True) as port:
        answer = await exchange(port, request)  # ends: the connection is closed
        assert status_of(answer) in (200, 431)
        assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("name", "head", "status"),
    [
        ("no host", b"GET /health HTTP/1.1\r\n", 400),
        ("two hosts", b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n", 400),
        ("no host in 1.0", b"GET /health HTTP/1.0\r\n", 200),
        (
            "gzip in transit",
            HEAD + b"transfer-encoding: gzip, chunked\r\n",
            501,
        ),
        ("chunked in 1.0", HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n", 400),
        ("gzip body", HEAD + CLOSE + b"content-encoding: gzip\r\ncontent-length: 0\r\n", 415),
        ("identity", HEAD + CLOSE + b"content-encoding: identity\r\ncontent-length: 0\r\n", 400),
        ("encoded slash", HEAD.replace(b"/v1/", b"/v1%2f") + CLOSE + b"content-length: 0\r\n", 404),
        (
            "encoded letter",
            HEAD.replace(b"/v1/", b"/v%31/") + CLOSE + b"content-length: 0\r\n",
            404,
        ),
    ],
)
async def test_rfc_9112(make_app: AppMaker, name: str, head: bytes, status: int) -> None:
    async with serve(make_app(replay([50]))) as port:
        answer = await exchange(port, head + b"\r\n")
        assert status_of(answer) == status, answer


async def test_an_encoded_slash_in_a_model_name(make_app: AppMaker) -> None:
    async with serve(make_app(replay([50]))) as port:
        for path in (b"org%2Fscripted", b"org/scripted"):
            request = b"GET /v1/models/" + path + b" HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n"
            answer = await exchange(port, request)
            assert status_of(answer) == 200
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["id"] == "org/scripted"


@pytest.mark.parametrize(
    "rest",
    [
        b"\r\n",  # ends uvicorn's own keep-alive timer, and begins no message
        b"G",
        b"",
    ],
)
@pytest.mark.parametrize("admin", [False, True])
async def test_a_connection_ends_after_an_answer(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch, rest: bytes, admin: bool
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(taco_common.admin, "_HEADER_SECONDS", 0.2)
    path = b"/livez" if admin else b"/health"
    async with serve(make_app(replay([50])), admin=admin) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert status_of(await reader.readuntil(b"\r\n\r\n")) == 200
        writer.write(rest)
        await until_closed(reader)
        writer.close()


async def test_a_pipelined_request_may_take_long(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header timer does not run while a pipelined request is served."""
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    first, second = Hold(), Hold()
    holds = iter([first, second])
    last = SequenceUpdate(0, [50], finish_reason=FinishReason.LENGTH)
    app = make_app(lambda _: [next(holds), last])
    request = HEAD + b"content-length: %d\r\n" % len(BODY)
    async with serve(app) as port:
        pipelined = request + b"\r\n" + BODY + request + CLOSE + b"\r\n" + BODY
        running = asyncio.create_task(exchange(port, pipelined))
        await first.reached.wait()
        first.release()
        await second.reached.wait()
        idle, writer = await asyncio.open_connection("127.0.0.1", port)
        await until_closed(idle)  # by its timer, which began after the first answer
        writer.close()
        second.release()
        assert (await running).count(b"HTTP/1.1 200") == 2


async def test_a_slow_body_after_its_answer(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    async with serve(make_app(replay([50]))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n")
        assert status_of(await reader.readuntil(b"\r\n\r\n")) == 404
        closed = asyncio.ensure_future(until_closed(reader))
        while not closed.done():
            try:
                writer.write(b"x")
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)
        await closed
        writer.close()


@pytest.mark.slow
async def test_an_answer_that_is_never_read(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that do not fit into the sockets wait; the connection is closed, then reset."""
    monkeypatch.setattr(http_protocol, "STALL_SECONDS", 0.3)
    app = make_app(replay([50] * 4000, FinishReason.LENGTH))
    body = json.dumps({"prompt": "x", "max_tokens": 500, "logprobs": 5}).encode()
    request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    async with serve(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        for _ in range(400):  # pipelined; their answers are never read
            writer.write(request)
        await until(num_open(app, 1), "the connection")
        await until(num_open(app, 0), "its end")
        writer.close()


async def test_one_connection_too_many(make_app: AppMaker) -> None:
    hold = Hold()
    last = SequenceUpdate(0, [50], finish_reason=FinishReason.LENGTH)
    app = make_app(lambda _: [hold, last], max_connections=1)
    request = HEAD + CLOSE + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    async with serve(app) as port:
        running = asyncio.create_task(exchange(port, request))
        await hold.reached.wait()
        rejected = await exchange(port, request)
        assert status_of(rejected) == 503
        assert b"retry-after: " in rejected
        assert error_of(rejected)["type"] == "service_unavailable_error"
        hold.release()
        assert status_of(await running) == 200
        await until(num_open(app, 0), "the end of both")
        health = b"GET /health HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n"
        assert status_of(await exchange(port, health)) == 200
    metrics = (await app.http.get("/metrics")).text
    assert 'taco:http_connections_rejected_total{model_name="org/scripted"} 1.0' in metrics


def test_descriptors_run_out(caplog: pytest.LogCaptureFixture) -> None:
    check = DescriptorCheck()
    assert check.check()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert not check.check()
        assert not check.check()
        assert connections_within_limit(8192) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    errors = [r for r in caplog.records if "no file descriptor is left" in r.getMessage()]
    assert len(errors) == 1
    assert check.check()


async def test_head_sends_no_body(make_app: AppMaker) -> None:
    head = b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    get = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + CLOSE + b"\r\n"
    async with serve(make_app(replay([50]))) as port:
        answer = await exchange(port, head + get)
    first, second, body = answer.split(b"\r\n\r\n")
    length = b"content-length: %d" % len(body)
    assert length in first
    assert length in second
    assert status_of(second) == 200
