"""The benchmark client with good, bad and missing answers of servers."""

import asyncio
from time import perf_counter
from typing import Any

import pytest

from support.canned_server import STREAM_HEAD, CannedServer, events, piece, refusal
from support.serving import free_port
from taco_llm.bench.http_exchange import Server
from taco_llm.bench.openai_client import OpenAIClient, first_model
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.bench.timeline import Timeline
from taco_llm.bench.workload import BenchRequest
from taco_proto.errors import ConfigurationError

REQUEST = BenchRequest([5, 6, 7], 4, 3)
GOOD = STREAM_HEAD + events(piece("a"), piece("b"), piece("c", "length"), "[DONE]")


def send(url: str, request: BenchRequest = REQUEST, **args: Any) -> Timeline:
    server_args = BenchServeArgs(base_url=url, **args)
    client = OpenAIClient(Server(server_args.url), server_args, "m", None)
    return asyncio.run(client.send(request, 0.0))


def test_a_completion_is_timed_and_counted() -> None:
    with CannedServer(GOOD) as server:
        before = perf_counter()
        timeline = send(server.url)
        after = perf_counter()
    assert timeline.error is None
    assert timeline.text == "abc"
    assert (timeline.prompt_tokens, timeline.output_tokens) == (3, 3)  # without usage: chunks
    assert before < timeline.start < timeline.chunks[0] <= timeline.end < after
    assert server.requests == [
        {
            "model": "m",
            "prompt": [5, 6, 7],
            "max_tokens": 4,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_times_are_relative_to_the_origin() -> None:
    with CannedServer(GOOD) as server:
        args = BenchServeArgs(base_url=server.url)
        origin = perf_counter()
        timeline = asyncio.run(
            OpenAIClient(Server(args.url), args, "m", None).send(REQUEST, origin)
        )
    assert 0 < timeline.start < timeline.chunks[0] <= timeline.end < perf_counter() - origin


def test_chat_keys_headers_and_fields_of_the_users_own() -> None:
    with CannedServer(GOOD) as server:
        send(
            f"{server.url}/v1/",
            BenchRequest("Hello", 4, 1),
            endpoint="/v1/chat/completions",
            api_key="k",
            header=(("X-Tenant", "t"),),
            ignore_eos=True,
            extra_body={"top_k": 3, "temperature": None},
        )
    (body,), (headers,) = server.requests, server.headers
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert (body["ignore_eos"], body["top_k"]) == (True, 3)
    assert "temperature" not in body
    assert (headers["Authorization"], headers["X-Tenant"]) == ("Bearer k", "t")


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "env")
    with CannedServer(GOOD) as server:
        send(server.url)
    assert server.headers[0]["Authorization"] == "Bearer env"


def test_a_chunked_answer() -> None:
    stream = events(piece("a"), piece("b", "stop"), "[DONE]")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (stream[:9], stream[9:]))
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with CannedServer(head + chunks + b"0\r\n\r\n") as server:
        timeline = send(server.url)
    assert timeline.error is None
    assert timeline.text == "ab"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refusal(500, b'{"error": {"message": "boom"}}'), "HTTP 500: boom"),
        (refusal(429, b"slow down"), "HTTP 429: slow down"),
        (STREAM_HEAD + events(piece("a")), "the stream broke off"),
        (STREAM_HEAD + events({"error": {"message": "boom"}}), "boom"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "the answer is not an event stream"),
        (b"", "the server closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "the connection failed: "),
    ],
)
def test_a_bad_answer_is_a_failed_request(answer: bytes, message: str) -> None:
    with CannedServer(answer) as server:
        timeline = send(server.url)
    assert timeline.error is not None
    assert timeline.error.startswith(message)
    assert timeline.end >= timeline.start


def test_a_request_times_out() -> None:
    with CannedServer(None) as server:
        timeline = send(server.url, request_timeout=0.05)
    assert timeline.error == "no complete answer within 0.05 s"


def test_a_lost_server_is_a_failed_request() -> None:
    timeline = send(f"http://127.0.0.1:{free_port()}")
    assert timeline.error is not None
    assert timeline.error.startswith("the connection failed")


def test_an_unreachable_server_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot connect to http:"):
        Server(f"http://127.0.0.1:{free_port()}").find()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:port"])
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL"):
        Server(url)


def test_the_first_model_of_the_list() -> None:
    with CannedServer(GOOD, b'{"data": [{"id": "first"}, {"id": "second"}]}') as server:
        args = BenchServeArgs(base_url=server.url)
        assert asyncio.run(first_model(Server(server.url), args)) == "first"


@pytest.mark.parametrize("models", [b"", b"{}", b'{"data": []}', b"<html>"])
def test_without_a_list_of_models_model_is_needed(models: bytes) -> None:
    with CannedServer(GOOD, models) as server:
        args = BenchServeArgs(base_url=server.url)
        with pytest.raises(ConfigurationError, match="give one with --model"):
            asyncio.run(first_model(Server(server.url), args))
