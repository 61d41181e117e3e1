"""Prefix cache fields of Inference service calls."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from support.gateway_app import App, build_app, small_tokenizer
from support.scripted_engine import replay
from taco_gateway.grpc_api.inference_service import start_inference_server
from taco_proto import inference_pb2 as pb
from taco_proto.inference_pb2_grpc import InferenceStub
from taco_proto.requests import GenerateRequest

MARK = pb.CacheControl(type="ephemeral")
HOUR = pb.CacheControl(type="ephemeral", ttl="1h")
SYSTEM = pb.ChatMessage(role="system", content="The quick brown fox.", cache_control=HOUR)
QUESTION = pb.ChatMessage(role="user", content="jumps?", cache_control=MARK)
Call = pb.ChatRequest | pb.CompleteRequest


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    made = build_app(replay([50]), small_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    yield made
    made.gateway.engine.close()


async def send(app: App, path: Path, request: Call) -> GenerateRequest:
    """The request that the engine gets."""
    address = f"unix:{path}/inference.sock"
    server = await start_inference_server(address, app.gateway)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = InferenceStub(channel)
            call = stub.Chat if isinstance(request, pb.ChatRequest) else stub.Complete
            async for _ in call(request):
                pass
    finally:
        await server.stop(None)
    return app.engine.requests[-1]


async def test_marks_on_messages(app: App, tmp_path: Path) -> None:
    whole, system = (await send(app, tmp_path, pb.ChatRequest(messages=[SYSTEM, QUESTION]))).pins
    assert (whole.seconds, system.seconds) == (300.0, 3600.0)
    assert whole.num_tokens > system.num_tokens > 0


async def test_marks_on_whole_prompts(app: App, tmp_path: Path) -> None:
    tokens = pb.TokenIds(ids=[5, 6, 7])
    request = pb.CompleteRequest(token_ids=tokens, cache_control=MARK, prompt_cache_key="k")
    sent = await send(app, tmp_path, request)
    assert [(pin.num_tokens, pin.seconds) for pin in sent.pins] == [(3, 300.0)]
    assert sent.prompt_cache_key == "k"
    salted = pb.CompleteRequest(token_ids=tokens, cache_salt="s" * 256)
    assert (await send(app, tmp_path, salted)).cache_salt == "s" * 256
    chat = pb.ChatRequest(
        messages=[pb.ChatMessage(role="user", content="x")],
        prompt_cache_retention="24h",
        prompt_cache_key="k",
    )
    sent = await send(app, tmp_path, chat)
    assert [pin.seconds for pin in sent.pins] == [86400.0]
    assert sent.prompt_cache_key == "k"


async def test_without_marks_nothing_is_kept(app: App, tmp_path: Path) -> None:
    sent = await send(app, tmp_path, pb.CompleteRequest(text="the"))
    assert (sent.pins, sent.prompt_cache_key) == ((), "")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (
            pb.ChatRequest(messages=[pb.ChatMessage(role="user", cache_control=pb.CacheControl())]),
            "messages[0].cache_control.type",
        ),
        (
            pb.CompleteRequest(text="x", cache_control=pb.CacheControl(type="ephemeral", ttl="2h")),
            "cache_control.ttl",
        ),
        (pb.ChatRequest(messages=[SYSTEM] * 5), "messages"),
        (pb.CompleteRequest(text="x", prompt_cache_key="k" * 300), "prompt_cache_key"),
        (pb.CompleteRequest(text="x", prompt_cache_retention="2h"), "prompt_cache_retention"),
        (pb.CompleteRequest(text="x", cache_salt="s" * 257), "cache_salt"),
        (pb.ChatRequest(messages=[SYSTEM], cache_salt="s" * 257), "cache_salt"),
    ],
)
async def test_bad_values_are_named(app: App, tmp_path: Path, request_: Call, param: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await send(app, tmp_path, request_)
    assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert dict(raised.value.trailing_metadata() or ())["param"] == param
