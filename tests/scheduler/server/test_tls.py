"""A scheduler over mutual TLS: each method is for one role, and other streams continue."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.certificates import make_certificates, tls_config
from support.engine_driver import make_request
from support.fake_worker import FakeWorker, generate, worker_info
from support.grpc_peers import GatewayPeer, WorkerPeer, background, dial, status
from support.patience import PATIENCE_SECONDS
from support.serving import free_port
from taco_common.grpc_tls import open_channel
from taco_common.tls import Role
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import SchedulerConfig
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "tls", *Role)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[str]:
    address = f"127.0.0.1:{free_port()}"
    tls = tls_config(directory, Role.SCHEDULER)
    config = SchedulerConfig(listen=address, tls=tls, log_stats=False, worker_timeout=120.0)
    service = SchedulerService(config)
    server = SchedulerServer(service, address)
    await service.start()
    await server.start()
    try:
        yield address
    finally:
        await service.stop()
        await server.stop()


@asynccontextmanager
async def dial_as(role: Role, directory: Path, address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with open_channel(address, (), tls_config(directory, role), Role.SCHEDULER) as channel:
        yield channel


async def allowed_methods(channel: grpc.aio.Channel) -> set[str]:
    """What a peer may call, by trying all there is; health checks are for everybody."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS)
    stub = SchedulerStub(channel)
    codes = {"Stats": await stub.Stats(pb.StatsRequest(), timeout=PATIENCE_SECONDS).code()}
    streams = {
        "Generate": stub.Generate(),
        "Attach": stub.Attach(),
        "AttachDrafter": stub.AttachDrafter(),
    }
    for name, stream in streams.items():
        await stream.done_writing()  # who is let in is told that a hello is missing
        codes[name] = await status(stream)
    return {name for name, code in codes.items() if code != grpc.StatusCode.PERMISSION_DENIED}


async def test_each_role_has_its_own_methods(directory: Path) -> None:
    own = {
        Role.GATEWAY: {"Generate", "Stats"},
        Role.WORKER: {"Attach"},
        Role.DRAFT_WORKER: {"AttachDrafter"},
    }
    async with serving(directory) as address:
        for role in Role:
            async with dial_as(role, directory, address) as channel:
                assert await allowed_methods(channel) == own.get(role, set()), role


async def test_requests_run_while_others_are_refused(directory: Path) -> None:
    request = make_request(1, [9, 8, 7], max_tokens=60, ignore_eos=True)
    async with (
        serving(directory) as address,
        dial_as(Role.WORKER, directory, address) as worker_channel,
        dial_as(Role.GATEWAY, directory, address) as gateway_channel,
    ):
        worker = WorkerPeer(SchedulerStub(worker_channel), FakeWorker())
        await worker.hello()
        gateway = GatewayPeer(SchedulerStub(gateway_channel))
        await gateway.hello()
        await gateway.submit(request)
        await worker.serve(num_steps=10)

        async with dial_as(Role.GATEWAY, directory, address) as channel:
            # It sends no hello: a write that fails before the rejection arrives is INTERNAL.
            false_worker = SchedulerStub(channel).Attach()
            assert await status(false_worker) == grpc.StatusCode.PERMISSION_DENIED
        async with dial(address) as stub:  # plaintext
            assert await status(stub.Generate()) == grpc.StatusCode.UNAVAILABLE

        async with background(worker.serve()):
            received = await gateway.read_ends(1)
            stats = await SchedulerStub(gateway_channel).Stats(pb.StatsRequest())
    assert received.tokens[1, 0] == generate([9, 8, 7], request.sampling, worker_info(), 1)
    assert stats.num_workers == 1
