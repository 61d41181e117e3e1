"""The scheduler's wall clock jumps while a worker holds a step and requests wait."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.engine_driver import make_request
from support.fake_worker import FakeWorker, generate, worker_info
from support.grpc_peers import GatewayPeer, WorkerPeer, background, dial
from support.patience import until
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import SchedulerConfig
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService

HOUR = 3600.0


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[SchedulerService, str]]:
    service = SchedulerService(SchedulerConfig(log_stats=False, worker_timeout=120.0))
    server = SchedulerServer(service, f"unix:{directory}/scheduler.sock")
    await service.start()
    await server.start()
    try:
        yield service, server.address
    finally:
        await service.stop()
        await server.stop()


async def has_requests(service: SchedulerService, count: int) -> bool:
    return service.engine.num_requests == count


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_jump_of_the_wall_clock_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    prompts = [[5, 6, 7], [8, 9], [1, 2, 3]]
    requests = [
        make_request(handle, prompt, seed=handle, deadline=time.monotonic() + 600, max_tokens=9)
        for handle, prompt in enumerate(prompts)
    ]

    async with serving(tmp_path) as (service, address), dial(address) as stub:
        gateway, worker = GatewayPeer(stub), WorkerPeer(stub, FakeWorker())
        await gateway.hello()
        await gateway.submit(requests[0])  # waits for a worker
        await until(lambda: has_requests(service, 1), "the first request")
        await worker.hello()
        held = await worker.call.read()  # a step that the worker has not answered
        assert held.WhichOneof("body") == "plan"

        wall_clock = time.time
        monkeypatch.setattr(time, "time", lambda: wall_clock() + jump)
        await gateway.submit(requests[1])  # wakes the scheduler
        await until(lambda: has_requests(service, 2), "the second request")
        monkeypatch.setattr(time, "time", lambda: wall_clock() - jump)
        await gateway.submit(requests[2])
        await until(lambda: has_requests(service, 3), "the third request")
        assert (await stub.Stats(pb.StatsRequest())).num_workers == 1

        worker.hold(held)
        async with background(worker.serve()):
            received = await gateway.read_ends(3)
            assert service.engine.counters.num_lost_workers == 0
    assert not received.errors
    for request, prompt in zip(requests, prompts, strict=True):
        expected = generate(prompt, request.sampling, worker_info(), request.handle)
        assert received.tokens[request.handle, 0] == expected
