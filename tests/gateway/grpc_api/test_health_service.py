"""gRPC's health service of a gateway, through a real server on a Unix socket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.gateway_app import App, build_app
from support.patience import PATIENCE_SECONDS, until
from support.scripted_engine import MODEL_INFO, replay
from taco_common.grpc_stop import stop_server
from taco_gateway.grpc_api import health_service
from taco_gateway.grpc_api.inference_service import start_inference_server

Status = health_pb2.HealthCheckResponse
INFERENCE = health_pb2.HealthCheckRequest(service="taco.v1.Inference")
SERVER = health_pb2.HealthCheckRequest()


class Served:
    """A gateway with API keys, its server, and a channel without a key."""

    def __init__(self, app: App, server: grpc.aio.Server, channel: grpc.aio.Channel) -> None:
        self.app = app
        self.server = server
        self.channel = channel
        self.stub: Any = health_pb2_grpc.HealthStub(channel)

    async def has_room(self) -> bool:
        """Whether one more watcher is accepted."""
        call = self.stub.Watch(SERVER)
        try:
            return await call.read() is not grpc.aio.EOF
        except grpc.aio.AioRpcError:
            return False
        finally:
            call.cancel()


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(health_service, "WATCH_SECONDS", 0.01)
    app = build_app(replay([5]), None, api_keys=("secret",))
    address = f"unix:{tmp_path}/inference.sock"
    server = await start_inference_server(address, app.gateway)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Served(app, server, channel)
    await server.stop(None)
    await app.http.aclose()
    app.gateway.engine.close()


@pytest.mark.parametrize("request_", [SERVER, INFERENCE], ids=["server", "service"])
async def test_a_watcher_gets_the_status_and_each_change(
    served: Served, request_: health_pb2.HealthCheckRequest
) -> None:
    call = served.stub.Watch(request_)
    async with asyncio.timeout(PATIENCE_SECONDS):
        for info, status in [
            (MODEL_INFO, Status.SERVING),
            (None, Status.NOT_SERVING),
            (MODEL_INFO, Status.SERVING),
        ]:
            served.app.engine.info = info
            assert (await call.read()).status == status
    call.cancel()


async def test_nothing_is_sent_without_a_change(served: Served) -> None:
    call = served.stub.Watch(SERVER)
    await call.read()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(call.read()), 0.2)
    call.cancel()


async def test_a_watcher_does_not_hold_up_a_drain(served: Served) -> None:
    call = served.stub.Watch(SERVER)
    assert (await call.read()).status == Status.SERVING
    served.app.gateway.draining = True
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stop_server(served.server, 10 * PATIENCE_SECONDS)
        assert (await call.read()).status == Status.NOT_SERVING
        assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_an_unknown_service_may_be_watched(served: Served) -> None:
    call = served.stub.Watch(health_pb2.HealthCheckRequest(service="other.Service"))
    assert (await call.read()).status == Status.SERVICE_UNKNOWN
    call.cancel()


async def test_the_number_of_watchers_is_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_service, "MAX_WATCHERS", 2)
    calls = [served.stub.Watch(SERVER) for _ in range(2)]
    for call in calls:
        await call.read()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await served.stub.Watch(SERVER).read()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not [record for record in caplog.records if record.exc_info]
    calls[0].cancel()
    await until(served.has_room, "the end of a cancelled watcher")
    calls[1].cancel()


@pytest.mark.parametrize("method", ["Check", "Watch"])
@pytest.mark.parametrize("data", [b"\xff" * 10, b"\x0a\x01\xff", b"\x0a\x7f"])
async def test_bytes_that_are_no_request(
    served: Served, caplog: pytest.LogCaptureFixture, method: str, data: bytes
) -> None:
    path = f"/grpc.health.v1.Health/{method}"
    unary: Any = served.channel.unary_unary(path)
    stream: Any = served.channel.unary_stream(path)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await (unary(data) if method == "Check" else stream(data).read())
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "The request is not a valid HealthCheckRequest message."
    assert not [record for record in caplog.records if record.exc_info]
