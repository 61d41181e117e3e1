"""The Inference service through a real gRPC server on a Unix socket, over a scripted engine."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tokenizers import Tokenizer as Backend

from support.gateway_app import MODEL, build_app, small_tokenizer, write_tokenizer
from support.patience import PATIENCE_SECONDS
from support.scripted_engine import MODEL_INFO, Hold, Script, ScriptedEngine, prompt_of, replay
from support.serving import free_port
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate, not_licensed
from taco_gateway.grpc_api.inference_service import start_inference_server
from taco_gateway.text.response.channel_format import HARMONY
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto import inference_pb2 as pb
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError
from taco_proto.inference_pb2_grpc import InferenceStub
from taco_proto.licenses import LICENSE_INVALID, LICENSE_MESSAGE
from taco_proto.requests import FinishReason, Tenant

Connect = Callable[..., Awaitable[tuple[ScriptedEngine, grpc.aio.Channel]]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
async def connect(tokenizer: Tokenizer, tmp_path: Path) -> AsyncIterator[Connect]:
    """Starts a server over a script; gives the engine and a channel to it."""
    opened = []

    async def start(
        script: Script, *, tokenizer: Tokenizer = tokenizer, **config: Any
    ) -> tuple[ScriptedEngine, grpc.aio.Channel]:
        app = build_app(script, tokenizer, **config)
        address = f"unix:{tmp_path}/inference.sock"
        server = await start_inference_server(address, app.gateway)
        channel = grpc.aio.insecure_channel(address)
        opened.append((app, server, channel))
        return app.engine, channel

    yield start
    for app, server, channel in opened:
        await channel.close()
        await server.stop(None)
        await app.http.aclose()
        app.gateway.engine.close()


def words(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


async def test_chat_streams_text_and_ends_with_usage(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    ids = words(tokenizer, "the fox jumps")
    engine, channel = await connect(replay(ids, FinishReason.STOP))
    request = pb.ChatRequest(messages=[pb.ChatMessage(role="user", content="Hi")])
    replies = [reply async for reply in InferenceStub(channel).Chat(request)]
    assert "".join(reply.text for reply in replies) == "the fox jumps"
    assert [reply.finish_reason for reply in replies][-1] == "stop"
    assert not any(reply.HasField("usage") for reply in replies[:-1])
    prompt = prompt_of(engine.requests[0])
    assert tokenizer.decode(prompt, skip_special_tokens=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    usage = replies[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(ids))


async def test_complete_takes_text_or_token_ids_and_every_parameter(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    engine, channel = await connect(replay(words(tokenizer, "lazy dog")))
    stub = InferenceStub(channel)
    sampling = pb.TextSampling(
        n=2,
        temperature=0,
        max_tokens=3,
        stop=["dog"],
        seed=-5,
        top_k=7,
        allowed_token_ids=[5, 6],
        bad_words=["fox"],
    )
    async for _ in stub.Complete(pb.CompleteRequest(text="the", sampling=sampling)):
        pass
    async for _ in stub.Complete(pb.CompleteRequest(token_ids=pb.TokenIds(ids=[5, 6, 7]))):
        pass
    first, second = engine.requests
    assert prompt_of(first) == words(tokenizer, "the")
    given = first.sampling
    assert given.allowed_token_ids == (5, 6)
    assert given.bad_words_token_ids
    assert (given.n, given.temperature, given.max_tokens, given.top_k) == (2, 0.0, 3, 7)
    assert (given.seed, given.stop) == (-5, ("dog",))
    assert prompt_of(second) == [5, 6, 7]
    assert second.sampling.max_tokens == 16


async def test_constraints_begin_behind_the_reasoning_of_a_chat(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    engine, channel = await connect(replay(words(tokenizer, "lazy")), reasoning_parser="qwen3")
    stub = InferenceStub(channel)
    tag = '{"format": {"type": "const_string", "value": "lazy"}}'
    constraint = pb.StructuredOutputs(structural_tag=tag)
    sampling = pb.TextSampling(structured_outputs=constraint)
    messages = [pb.ChatMessage(role="user", content="Hi")]
    async for _ in stub.Chat(pb.ChatRequest(messages=messages, sampling=sampling)):
        pass
    async for _ in stub.Complete(pb.CompleteRequest(text="the", sampling=sampling)):
        pass
    chat, plain = (request.grammar for request in engine.requests)
    assert chat is not None
    assert plain is not None
    assert "</think>" in chat.text
    assert "</think>" not in plain.text


async def test_a_chat_with_channels_streams_the_content(tmp_path: Path, connect: Connect) -> None:
    """Of gpt-oss; the reasoning and the headers of messages are no part of the text."""
    directory = write_tokenizer(tmp_path / "channels")
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.add_special_tokens(list(HARMONY.tokens))
    backend.save(str(directory / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelConfig(model=str(directory)))
    assert tokenizer is not None
    answer = (
        f"{HARMONY.reasoning_header}so<|end|><|start|>assistant{HARMONY.content_headers[0]}lazy"
    )
    script = replay(words(tokenizer, answer), FinishReason.STOP)
    engine, channel = await connect(script, tokenizer=tokenizer)
    sampling = pb.TextSampling(structured_outputs=pb.StructuredOutputs(choice=["lazy"]))
    messages = [pb.ChatMessage(role="user", content="Hi")]
    chat = InferenceStub(channel).Chat(pb.ChatRequest(messages=messages, sampling=sampling))
    replies = [reply async for reply in chat]
    assert "".join(reply.text for reply in replies) == "lazy"
    assert replies[-1].finish_reason == "stop"
    (request,) = engine.requests
    assert request.grammar is not None
    assert "analysis" in request.grammar.text


async def test_beam_search_has_its_fields(connect: Connect, tokenizer: Tokenizer) -> None:
    engine, channel = await connect(replay(words(tokenizer, "lazy dog")))
    stub = InferenceStub(channel)
    for early_stopping, meaning in [("", False), ("false", False), ("true", True), ("never",) * 2]:
        sampling = pb.TextSampling(
            n=2,
            best_of=3,
            use_beam_search=True,
            length_penalty=0.5,
            early_stopping=early_stopping,
            max_tokens=2,
        )
        call = stub.Complete(pb.CompleteRequest(text="the", sampling=sampling))
        replies = [reply async for reply in call]
        assert {reply.index for reply in replies} == {0, 1}
        given = engine.requests[-1].sampling
        assert (given.n, given.best_of, given.use_beam_search) == (2, 3, True)
        assert (given.length_penalty, given.early_stopping) == (0.5, meaning)


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (pb.ChatRequest(), grpc.StatusCode.INVALID_ARGUMENT, "messages"),
        (
            pb.ChatRequest(messages=[pb.ChatMessage(role="root", content="x")]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "messages",
        ),
        (
            pb.ChatRequest(
                messages=[pb.ChatMessage(role="user", content="x")],
                sampling=pb.TextSampling(top_p=1.5),
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "top_p",
        ),
        (
            pb.ChatRequest(model="nobody", messages=[pb.ChatMessage(role="user", content="x")]),
            grpc.StatusCode.NOT_FOUND,
            "model",
        ),
        (pb.CompleteRequest(), grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        (
            pb.CompleteRequest(token_ids=pb.TokenIds(ids=[2**31])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt",
        ),
        (
            pb.CompleteRequest(token_ids=pb.TokenIds(ids=[5] * 512)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "prompt",
        ),
    ],
)
async def test_a_bad_request_is_a_status_that_names_the_field(
    connect: Connect,
    tokenizer: Tokenizer,
    request_: pb.ChatRequest | pb.CompleteRequest,
    code: grpc.StatusCode,
    param: str,
) -> None:
    engine, channel = await connect(replay(words(tokenizer, "fox")))
    stub = InferenceStub(channel)
    call = stub.Chat if isinstance(request_, pb.ChatRequest) else stub.Complete
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in call(request_):
            pass
    assert raised.value.code() == code
    assert dict(raised.value.trailing_metadata() or ())["param"] == param
    assert engine.streams == []
    ok = [reply async for reply in stub.Complete(pb.CompleteRequest(model=MODEL, text="the"))]
    assert ok[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("http_status", "code"),
    [
        (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (503, grpc.StatusCode.UNAVAILABLE),
        (504, grpc.StatusCode.DEADLINE_EXCEEDED),
        (500, grpc.StatusCode.INTERNAL),
    ],
)
async def test_an_engine_error_keeps_its_meaning(
    connect: Connect, http_status: int, code: grpc.StatusCode
) -> None:
    _, channel = await connect(lambda _: [EngineError(http_status, "no")])
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in InferenceStub(channel).Complete(pb.CompleteRequest(text="the")):
            pass
    assert raised.value.code() == code
    assert raised.value.details() == "no"


async def test_a_rejection_tells_when_to_retry(connect: Connect) -> None:
    _, channel = await connect(lambda _: [EngineError(429, "It is full", retry_after=17)])
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in InferenceStub(channel).Complete(pb.CompleteRequest(text="the")):
            pass
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(raised.value.trailing_metadata())
    assert trailing["retry-after"] == "17"
    assert trailing["grpc-retry-pushback-ms"] == "17000"


async def test_without_a_license_retries_are_discouraged(connect: Connect) -> None:
    engine, channel = await connect(lambda _: [not_licensed()])
    for _ in range(2):  # the scheduler refuses, then the gateway itself
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in InferenceStub(channel).Complete(pb.CompleteRequest(text="the")):
                pass
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert raised.value.details() == LICENSE_MESSAGE
        assert ("code", LICENSE_INVALID) in tuple(raised.value.trailing_metadata())
        engine.info = replace(MODEL_INFO, ready=False, license_problem="expired")
    assert len(engine.requests) == 1


async def test_a_key_brings_its_tenant_and_its_models(
    connect: Connect, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    entry = {"name": "a", "key": "secret", "models": ["alias"], "priority": 3, "weight": 2}
    path.write_text(json.dumps([entry]))
    engine, channel = await connect(replay(words(tokenizer, "fox")), api_key_file=str(path))
    stub, metadata = InferenceStub(channel), [("authorization", "Bearer secret")]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in stub.Complete(pb.CompleteRequest(text="the"), metadata=metadata):
            pass
    assert raised.value.code() == grpc.StatusCode.PERMISSION_DENIED
    request = pb.CompleteRequest(text="the", model="alias")
    async for _ in stub.Complete(request, metadata=metadata):
        pass
    (submitted,) = engine.requests
    assert (submitted.tenant, submitted.priority) == (Tenant(name="a", weight=2.0), 3)
    assert submitted.cache_salt == "a\0"


async def test_a_request_names_an_adapter_as_its_model(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    engine, channel = await connect(replay(words(tokenizer, "fox")))
    engine.info = replace(MODEL_INFO, adapters=("sql",))
    stub, messages = InferenceStub(channel), [pb.ChatMessage(role="user", content="Hi")]
    for name, adapter in (("sql", "sql"), (MODEL, ""), ("", "")):
        async for _ in stub.Complete(pb.CompleteRequest(text="the", model=name)):
            pass
        async for _ in stub.Chat(pb.ChatRequest(messages=messages, model=name)):
            pass
        assert [request.adapter for request in engine.requests[-2:]] == [adapter, adapter]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in stub.Complete(pb.CompleteRequest(text="the", model="other")):
            pass
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_client_that_disconnects_frees_its_request(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    fox = words(tokenizer, "fox")
    engine, channel = await connect(lambda _: [SequenceUpdate(0, fox), Hold()])
    call = InferenceStub(channel).Complete(pb.CompleteRequest(text="the"))
    assert (await call.read()).text == "fox"
    call.cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.streams[0].closed.wait()
    assert engine.streams[0].given_up


async def test_a_deadline_frees_the_request(connect: Connect, tokenizer: Tokenizer) -> None:
    engine, channel = await connect(lambda _: [Hold()])
    seconds = 0.1
    while not engine.streams:  # it may have passed on the way there
        request = pb.CompleteRequest(text="the")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in InferenceStub(channel).Complete(request, timeout=seconds):
                pass
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.streams[0].closed.wait()
    assert engine.requests[0].deadline is not None


async def test_every_call_but_health_checks_needs_a_key(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    _, channel = await connect(replay(words(tokenizer, "fox")), api_keys=("secret",))
    stub = InferenceStub(channel)
    request = pb.CompleteRequest(text="the")
    for metadata in (
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Basic secret")],
        [("authorization", "secret")],
        [("authorization", "Bearer secret"), ("authorization", "Bearer secret")],
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in stub.Complete(request, metadata=metadata):
                pass
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
    replies = [
        r async for r in stub.Complete(request, metadata=[("authorization", "Bearer secret")])
    ]
    assert replies
    health: Any = health_pb2_grpc.HealthStub(channel)
    reply = await health.Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_before_the_keys_are_loaded_calls_are_rejected(
    connect: Connect, tokenizer: Tokenizer
) -> None:
    _, channel = await connect(replay(words(tokenizer, "fox")), keys=KeyRing(None))
    metadata = [("authorization", "Bearer secret")]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for _ in InferenceStub(channel).Complete(
            pb.CompleteRequest(text="the"), metadata=metadata
        ):
            pass
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    health: Any = health_pb2_grpc.HealthStub(channel)
    reply = await health.Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_follows_the_worker(connect: Connect) -> None:
    engine, channel = await connect(replay([5]))
    stub: Any = health_pb2_grpc.HealthStub(channel)
    engine.info = None
    reply = await stub.Check(health_pb2.HealthCheckRequest(service="taco.v1.Inference"))
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Check(health_pb2.HealthCheckRequest(service="other.Service"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_service(connect: Connect) -> None:
    _, channel = await connect(replay([5]))
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    replies = [reply async for reply in stub.ServerReflectionInfo(iter([asked]))]
    names = {service.name for service in replies[0].list_services_response.service}
    assert "taco.v1.Inference" in names


async def test_an_address_in_use_is_one_clear_error(tokenizer: Tokenizer) -> None:
    app = build_app(replay([5]), tokenizer)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=address):
            await start_inference_server(address, app.gateway)
    await app.http.aclose()
    app.gateway.engine.close()


async def test_a_call_without_a_prompt_is_not_an_empty_prompt(connect: Connect) -> None:
    engine, channel = await connect(replay([5]))
    with pytest.raises(grpc.aio.AioRpcError, match="Give text or token_ids"):
        async for _ in InferenceStub(channel).Complete(pb.CompleteRequest()):
            pass
    assert not engine.streams


async def test_too_many_messages(connect: Connect, tokenizer: Tokenizer) -> None:
    """Their check must not block the event loop for seconds."""
    engine, channel = await connect(replay(words(tokenizer, "x")))
    stub = InferenceStub(channel)
    for num_messages in (3000, 1_000_000):
        request = pb.ChatRequest(messages=[pb.ChatMessage(role="user")] * num_messages)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            _ = [reply async for reply in stub.Chat(request)]
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not engine.streams


async def test_a_million_token_ids(connect: Connect, tokenizer: Tokenizer) -> None:
    info = replace(MODEL_INFO, max_model_len=2**21)
    engine, channel = await connect(replay(words(tokenizer, "x")), info=info)
    ids = [i % info.vocab_size for i in range(1_000_000)]
    request = pb.CompleteRequest(token_ids=pb.TokenIds(ids=ids))
    replies = [reply async for reply in InferenceStub(channel).Complete(request)]
    assert replies[-1].usage.prompt_tokens == len(ids)
    assert prompt_of(engine.streams[0].request) == ids


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_warning_without_tls_on_an_open_address(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    app = build_app(replay([]), tokenizer)
    listen = f"{host}:{free_port()}"
    server = await start_inference_server(listen, app.gateway)
    await server.stop(None)
    await app.http.aclose()
    app.gateway.engine.close()
    warnings = [message for message in caplog.messages if "has no TLS" in message]
    is_open = host == "0.0.0.0"
    assert (
        warnings == [f"gRPC on {listen} has no TLS: give certificates (--tls-ca-file, …)"] * is_open
    )


@pytest.mark.parametrize("method", ["Chat", "Complete"])
async def test_bytes_that_are_not_a_request_are_rejected(
    connect: Connect, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    _, channel = await connect(replay([50]))
    call: Any = channel.unary_stream(f"/taco.v1.Inference/{method}")
    for data in (b"\xff" * 10, b"\x0a\x01\xff", b"\x0a\x7f"):
        with pytest.raises(grpc.aio.AioRpcError, match="is not a valid") as caught:
            await call(data).read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    # gRPC has one poller per process, which reports late events of closed loops of other tests.
    records = [one for one in caplog.records if "PollerCompletionQueue" not in one.getMessage()]
    assert not [record for record in records if record.exc_info]
