"""HTTP over real connections: framing, OpenAI's client, disconnects and shutdown."""

import asyncio
import json

import openai
import pytest

from support.gateway_app import MODEL, AppMaker
from support.live_gateway import exchange, serve
from support.patience import PATIENCE_SECONDS
from support.scripted_engine import Hold, replay
from taco_common import http_protocol
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.requests import FinishReason

MAX_UNREAD_BYTES = 2**20
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def status_and_error(answer: bytes) -> tuple[int, dict[str, str]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head.lower(), head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


@pytest.mark.parametrize(
    ("name", "request_bytes", "status"),
    [
        ("garbage", b"\x00\x01\x02\r\n\r\n", 400),
        ("no HTTP", b"HELLO\r\n\r\n", 400),
        (
            "two framings",
            POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("two lengths", POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
        ("negative length", POST + b"content-length: -1\r\n\r\n", 400),
        ("bad chunk", POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        ("64 KiB header", POST + b"x-big: " + b"a" * 65536 + b"\r\n\r\n", 431),
        ("endless header", POST + b"x-big: " + b"a" * 200_000, 431),
        ("many headers", POST + b"".join(b"x-%d: 1\r\n" % i for i in range(9000)) + b"\r\n", 431),
        ("64 KiB URL", b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
        ("large body", POST + b"content-length: 3000\r\n\r\n" + b" " * 3000, 413),
        ("huge body", POST + b"expect: 100-continue\r\ncontent-length: 9999999999\r\n\r\n", 413),
    ],
)
async def test_bad_framing(
    make_app: AppMaker, name: str, request_bytes: bytes, status: int
) -> None:
    app = make_app(replay([50]), max_body_bytes=1000)
    async with serve(app) as port:
        answer = await exchange(port, request_bytes)
        assert status_and_error(answer)[0] == status
        good = POST + b'connection: close\r\ncontent-length: 15\r\n\r\n{"prompt": "x"}'
        assert (await exchange(port, good)).startswith(b"HTTP/1.1 200")


async def test_a_body_that_never_ends(make_app: AppMaker) -> None:
    app = make_app(replay([50]), body_timeout=0.05)
    async with serve(app) as port:
        answer = await exchange(port, POST + b'content-length: 100\r\n\r\n{"prompt": ')
        assert status_and_error(answer)[0] == 408


async def test_a_client_that_goes_away_while_it_sends(
    make_app: AppMaker, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(replay([50]))
    async with serve(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b'content-length: 100\r\n\r\n{"prompt": ')
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert "Traceback" not in caplog.text
    assert not app.engine.streams


async def test_headers_that_never_end(make_app: AppMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.05)
    async with serve(make_app(replay([50]))) as port:
        assert status_and_error(await exchange(port, POST))[0] == 408
        assert await exchange(port, b"") == b""


async def test_a_long_answer_outlives_the_limit_on_headers(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 1.0)  # enough for headers that do end
    hold = Hold()
    last = SequenceUpdate(0, [50], finish_reason=FinishReason.LENGTH)
    app = make_app(lambda _: [hold, last])
    async with serve(app) as port:
        good = POST + b'connection: close\r\ncontent-length: 15\r\n\r\n{"prompt": "x"}'
        task = asyncio.create_task(exchange(port, good))
        await hold.reached.wait()
        assert status_and_error(await exchange(port, POST))[0] == 408  # later than ours
        hold.release()
        assert (await task).startswith(b"HTTP/1.1 200")


async def test_connections_are_used_again(make_app: AppMaker) -> None:
    async with serve(make_app(replay([50]))) as port:
        request = POST + b'content-length: 15\r\n\r\n{"prompt": "x"}'
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            (length,) = [
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.startswith(b"content-length")
            ]
            assert json.loads(await reader.readexactly(length))["choices"]
        writer.close()


async def test_openai_client(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(
        replay(tokenizer.encode("Hello, wörld 😀"), FinishReason.STOP), api_keys=("sk-test",)
    )
    async with (
        serve(app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-test") as client,
    ):
        models = [model.id async for model in await client.models.list()]
        assert models == [MODEL, "alias"]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
        assert whole.choices[0].message.content == "Hello, wörld 😀"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens_details is not None
        pieces = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in pieces]
        assert chunks[-1].usage == whole.usage
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "Hello, wörld 😀"
        completion = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=1)
        assert completion.choices[0].finish_reason == "stop"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(
                model="gpt-4", messages=[{"role": "user", "content": "Hi"}]
            )
        assert missing.value.code == "model_not_found"
        assert missing.value.request_id
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model=MODEL, prompt="Hi", temperature=-1)
        assert bad.value.param == "temperature"


async def test_openai_client_sees_errors_in_mid_stream(make_app: AppMaker) -> None:
    app = make_app(lambda _: [SequenceUpdate(0, [50]), EngineError(500, "It broke.")])
    async with (
        serve(app) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client,
    ):
        stream = await client.completions.create(model=MODEL, prompt="Hi", stream=True)
        with pytest.raises(openai.APIError, match="It broke"):
            _ = [chunk async for chunk in stream]


@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_closing_the_connection_cancels_the_request(
    make_app: AppMaker, stream: bytes
) -> None:
    hold = Hold()
    app = make_app(lambda _: [SequenceUpdate(0, [50]), hold])
    body = b'{"prompt": "x", "stream": ' + stream + b"}"
    async with serve(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        await asyncio.wait_for(hold.reached.wait(), PATIENCE_SECONDS)
        writer.close()
        await asyncio.wait_for(app.engine.streams[0].closed.wait(), PATIENCE_SECONDS)
        assert app.engine.streams[0].given_up


async def test_a_client_that_does_not_read(
    make_app: AppMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is disconnected after the stall timeout, and uses no memory but the buffers."""
    transports: list[asyncio.Transport] = []
    connection_made = http_protocol.BoundedHttpProtocol.connection_made

    def note(protocol: http_protocol.BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        transports.append(transport)
        connection_made(protocol, transport)

    monkeypatch.setattr(http_protocol.BoundedHttpProtocol, "connection_made", note)

    def endless(_: object) -> list[SequenceUpdate]:
        return [SequenceUpdate(0, [50] * 4000) for _ in range(4000)]

    app = make_app(endless, stall_timeout=0.2)
    body = b'{"prompt": "x", "stream": true, "max_tokens": 500}'
    async with serve(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(PATIENCE_SECONDS):
            largest = 0
            while not app.engine.streams or not app.engine.streams[0].closed.is_set():
                largest = max([largest, *(t.get_write_buffer_size() for t in transports)])
                await asyncio.sleep(0)
        assert app.engine.streams[0].given_up
        assert 0 < largest < MAX_UNREAD_BYTES
        writer.close()


async def test_shutdown_lets_running_requests_finish(make_app: AppMaker) -> None:
    hold = Hold()
    last = SequenceUpdate(0, [50], finish_reason=FinishReason.LENGTH)
    app = make_app(lambda _: [hold, last])
    async with serve(app) as port:
        request = POST + b'content-length: 15\r\n\r\n{"prompt": "x"}'
        task = asyncio.create_task(exchange(port, request))
        await hold.reached.wait()
        app.gateway.draining = True
        refused = await exchange(
            port, POST + b'connection: close\r\ncontent-length: 15\r\n\r\n{"prompt": "x"}'
        )
        assert status_and_error(refused)[0] == 503
        asyncio.get_running_loop().call_later(0.3, hold.release)
    assert (await task).startswith(b"HTTP/1.1 200")
