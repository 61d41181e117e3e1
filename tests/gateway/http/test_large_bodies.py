"""Large bodies are parsed in another process, and limited before validation."""

import json
import os
import signal
import threading
import tracemalloc
from array import array
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.gateway_app import AppMaker
from support.patience import PATIENCE_SECONDS
from support.scripted_engine import MODEL_INFO, replay
from taco_gateway.api_errors import ApiError
from taco_gateway.http import body_frames, body_parser_pool, strict_json
from taco_gateway.http.body_parser_process import NICENESS
from taco_gateway.http.body_reader import read_json_bytes
from taco_gateway.http.strict_json import (
    MAX_LIST_ITEMS,
    MAX_OBJECT_KEYS,
    MAX_VALUES,
    check_counts,
)
from taco_gateway.protocol.request_schemas import CHAT, REQUEST_SCHEMAS, RequestSchema
from taco_gateway.protocol.tokenize_requests import DetokenizeRequest
from taco_gateway.sandbox.process_pool import _LimitedProcess
from taco_gateway.text.request_checks import CheckedTokenIds
from taco_proto.requests import ModelInfo

pytestmark = pytest.mark.slow

CHAT_PATH, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = {"type": "text", "text": "a"}


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


# Each took seconds on the event loop.
ATTACKS: dict[str, tuple[str, object, str | None]] = {
    "bad parts": (CHAT_PATH, {"messages": [user([{"type": "t"}] * 30_000)]}, "messages"),
    "good parts": (CHAT_PATH, {"messages": [user([TEXT] * 30_000)]}, "messages"),
    "values in many lists": (CHAT_PATH, {"messages": [user([TEXT] * 1000)] * 40}, "messages"),
    "lists of one id": (COMPLETIONS, {"prompt": [[1]] * 100_000}, "prompt"),
    "logit_bias": (
        COMPLETIONS,
        {"prompt": "x", "logit_bias": {str(i): 1 for i in range(50_000)}},
        "logit_bias",
    ),
    "unknown keys": (COMPLETIONS, {f"x{i}": 1 for i in range(50_000)}, None),
    "token ids": ("/detokenize", {"tokens": [1] * 2_200_000}, "tokens"),
    "depth": (COMPLETIONS, {"x": nested(400)}, None),
}


class Watch:
    """Counts what this process parses and validates, and on which threads.

    Attributes:
        num_bytes: the largest body that was parsed here.
        validated: threads on which bodies were validated here.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.validated: list[threading.Thread] = []


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    found = Watch()
    parse = strict_json.parse_json_object

    def counting_parse(raw: bytes) -> dict[str, Any]:
        found.num_bytes = max(found.num_bytes, len(raw))
        return parse(raw)

    def noting(surface: RequestSchema[Any]) -> RequestSchema[Any]:
        def validate(body: Mapping[str, Any]) -> Any:
            found.validated.append(threading.current_thread())
            return surface.validate(body)

        return RequestSchema(surface.name, validate)

    monkeypatch.setattr(body_parser_pool, "parse_json_object", counting_parse)
    for module in ("chat", "completions", "tokenize"):
        for name, surface in REQUEST_SCHEMAS.items():
            target = f"taco_gateway.routes.{module}.{name.upper()}"
            monkeypatch.setattr(target, noting(surface), raising=False)
    return found


def called(*arguments: str) -> dict[str, object]:
    calls = [{"function": {"name": "f", "arguments": text}} for text in arguments]
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"messages": [user("x"), turn, user("y")]}


# JSON inside a string of the JSON: the bounds on a body's values do not see it.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "values in small lists": (f"[{','.join(['[]'] * 40_000)}]",),
    "integers": (f"[{','.join('1' * 40_000)}]",),
    "keys": (json.dumps({str(i): i for i in range(40_000)}),),
    "values of many calls": (f"[{','.join('1' * 1000)}]",) * 40,
    "depth": ("[" * 400 + "]" * 400,),
    "depth without an end": ("[" * 100_000,),
    "characters": (json.dumps("a" * 2**23),),
}


@pytest.mark.parametrize("path", [CHAT_PATH, "/tokenize"])
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_arguments_of_tool_calls_are_bounded(
    make_app: AppMaker, path: str, name: str
) -> None:
    app = make_app(replay([50]), chat_template="{{ messages[1].tool_calls | tojson | length }}")
    response = await app.http.post(path, json=called(*ARGUMENTS[name]))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "messages"
    assert "arguments of the tool calls" in response.json()["error"]["message"]


async def test_arguments_within_the_bounds_are_taken(make_app: AppMaker) -> None:
    app = make_app(replay([50]), chat_template="{{ messages[1].tool_calls | tojson | length }}")
    for arguments in (
        f"[{','.join('1' * 30_000)}]",
        "[" * 64 + "]" * 64,
        json.dumps("a" * 300_000),
        "[" * 100,  # not JSON: it stays a string
        "9" * 5_000,
    ):
        response = await app.http.post(CHAT_PATH, json=called(arguments))
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", ATTACKS)
async def test_too_many_values(make_app: AppMaker, watch: Watch, name: str) -> None:
    path, body, param = ATTACKS[name]
    app = make_app(replay([50]))
    response = await app.http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert len(response.text) < 1000
    assert not watch.validated, "it is rejected before validation"
    assert watch.num_bytes <= body_parser_pool.MAX_LOCAL_BYTES


async def test_a_million_token_ids(make_app: AppMaker, watch: Watch) -> None:
    app = make_app(replay([50]), info=_long_context())
    ids = [i % MODEL_INFO.vocab_size for i in range(1_000_000)]
    response = await app.http.post(COMPLETIONS, json={"prompt": ids, "max_tokens": 1})
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] == len(ids)
    (request,) = app.engine.requests
    assert request.token_ids == array("i", ids).tobytes()
    assert watch.num_bytes == 0, "another process parsed it"
    assert watch.validated
    assert threading.main_thread() not in watch.validated


async def test_a_long_text(make_app: AppMaker, watch: Watch) -> None:
    app = make_app(replay([50]), info=_long_context())
    text = 'fox "jumps"\n\u00e9\U0001f600' * 40_000
    response = await app.http.post("/tokenize", json={"prompt": text})
    assert response.status_code == 200
    restored = await app.http.post("/detokenize", json={"tokens": response.json()["tokens"]})
    assert restored.json()["prompt"] == text
    assert watch.num_bytes == 0
    assert threading.main_thread() not in watch.validated


async def test_a_conversation_with_many_small_messages(make_app: AppMaker, watch: Watch) -> None:
    """Few bytes, and much to validate."""
    app = make_app(replay([50]), info=_long_context())
    messages = [user([TEXT])] * 1500
    response = await app.http.post(CHAT_PATH, json={"messages": messages})
    assert response.status_code == 200
    assert watch.num_bytes == 0
    assert threading.main_thread() not in watch.validated


async def test_a_large_body_fails_as_a_small_one_does(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    padding = {"x": "a" * body_parser_pool.MAX_LOCAL_BYTES}
    bodies: tuple[dict[str, Any], ...] = (
        {"prompt": "x", "temperature": "hot"},
        {"prompt": "x", "temperature": -1},
        {"prompt": "x", "tools": [{}]},
        {"prompt": {}},
        {"prompt": [2**40] * 300},
    )
    for body in bodies:
        small = await app.http.post(COMPLETIONS, json=body)
        large = await app.http.post(COMPLETIONS, json=body | padding)
        assert small.status_code == large.status_code == 400
        if "prompt" not in body or body["prompt"] == "x":
            assert large.json() == small.json()
    for name in ("stop_token_ids", "allowed_token_ids"):
        ids = await app.http.post(
            COMPLETIONS, json={"prompt": "x", "max_tokens": 1, name: list(range(300))} | padding
        )
        assert ids.status_code == 200, ids.text
    broken = await app.http.post(COMPLETIONS, content=b'{"prompt": "' + b"a" * 2**19)
    assert broken.status_code == 400
    assert broken.json()["error"]["code"] == "invalid_json"


async def test_a_process_that_dies_is_replaced() -> None:
    pool = body_parser_pool.BodyPool()
    raw = json.dumps({"messages": [{"role": "user", "content": "a" * 2**19}]}).encode()
    try:
        for _ in range(2):
            assert (await pool.parse(raw, CHAT)).messages[0].text == "a" * 2**19
            (process,) = pool._processes._idle
            process._process.kill()  # as the kernel does when the machine's memory is full
            process._process.wait()
        assert (await pool.parse(raw, CHAT)).messages[0].text == "a" * 2**19
    finally:
        pool.close()
    assert not pool._processes._idle


async def test_streams_run_before_bodies() -> None:
    """Two bodies on two cores multiplied the gaps of streams by four to fourteen."""
    pool = body_parser_pool.BodyPool()
    raw = json.dumps({"messages": [{"role": "user", "content": "a" * 2**19}]}).encode()
    try:
        await pool.parse(raw, CHAT)
        (process,) = pool._processes._idle
        niceness = os.getpriority(os.PRIO_PROCESS, process._process.pid)
    finally:
        pool.close()
    assert niceness == min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)


async def test_a_body_is_in_memory_once() -> None:
    """A copy would be made on the event loop."""
    chunk, num_chunks = bytes(2**16), 2**8
    messages = iter([{"type": "http.request", "body": chunk, "more_body": True}] * num_chunks)

    async def receive() -> MutableMapping[str, Any]:
        return next(messages, {"type": "http.request", "body": b"", "more_body": False})

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    tracemalloc.start()
    try:
        body = await read_json_bytes(request, max_bytes=2**25, seconds=PATIENCE_SECONDS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) == len(chunk) * num_chunks
    assert peak < 1.5 * len(body)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, 503), (signal.SIGPROF, 400)])
async def test_a_process_that_dies_over_a_body(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    """SIGPROF is the limit of CPU time: only then the body is the cause."""

    def exchange(process: _LimitedProcess, *args: Any) -> list[bytes]:
        process._process.send_signal(number)
        return whole(process, *args)

    whole = _LimitedProcess.exchange
    monkeypatch.setattr(_LimitedProcess, "exchange", exchange)
    pool = body_parser_pool.BodyPool()
    raw = json.dumps({"messages": [{"role": "user", "content": "a" * 2**19}]}).encode()
    with pytest.raises(ApiError) as lost:
        await pool.parse(raw, CHAT)
    assert lost.value.status == status
    assert not pool._processes._idle


def test_bounds_are_exact() -> None:
    check_counts({"a": [None] * MAX_LIST_ITEMS})
    with pytest.raises(ApiError) as caught:
        check_counts({"a": {"b": [None] * (MAX_LIST_ITEMS + 1)}})
    assert caught.value.param == "a"
    assert "a.b has 4097 items; at most 4096 are allowed" in caught.value.message
    full = [[None] * 1023 for _ in range(MAX_VALUES // 1024 - 1)]
    check_counts({"a": full})
    with pytest.raises(ApiError, match="more than"):
        check_counts({"a": [*full, [None] * 2048]})
    check_counts({"a": [[1] * 5000, list(range(100_000))]})  # token ids
    with pytest.raises(ApiError):
        check_counts({"a": [True] * 5000})


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.text()
    | st.text(min_size=1, max_size=2).map(lambda text: text * body_frames.LONG_CHARS)
    | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2).map(lambda ids: ids * 200),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), _VALUES, max_size=3))
def test_frames_round_trip_a_body(body: dict[str, Any]) -> None:
    text = json.dumps(body)
    frames = body_frames.pack(json.loads(text))
    unpacked = body_frames.unpack(frames)
    assert json.loads(json.dumps(unpacked, default=list)) == body


def _long_context() -> ModelInfo:
    return replace(MODEL_INFO, max_model_len=2**21)


def test_checked_ids_are_packed() -> None:
    """`generate` trusts the type, so only checked ids may have it."""
    assert not isinstance(array("i", [1]), CheckedTokenIds)


class SlicedIds(array):
    """Token ids that can be read in slices only."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("one call reads all token ids")


def test_token_ids_are_checked_in_slices() -> None:
    ids = SlicedIds("i", [7] * 100_000)
    assert DetokenizeRequest.from_body({"tokens": ids}).tokens is ids
    for place in (0, 16_384, 99_999):
        ids[place] = -1
        with pytest.raises(ValidationError, match="its token ids must be in"):
            DetokenizeRequest.from_body({"tokens": ids})
        ids[place] = 7


def test_a_schema_may_have_thousands_of_properties() -> None:
    names = {f"property_{number}": {"type": "integer"} for number in range(MAX_OBJECT_KEYS)}
    check_counts({"response_format": {"json_schema": {"schema": {"properties": names}}}})
    with pytest.raises(ApiError, match="at most 4096"):
        check_counts({"a": {**names, "one more": 1}})
