"""The service's loop, with a worker in this process."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.engine_driver import Received, make_request
from support.fake_worker import FakeWorker, generate
from taco_proto.config import SchedulerConfig
from taco_scheduler.service import SchedulerService
from taco_scheduler.session import ClientSession


@pytest.fixture
async def service() -> AsyncIterator[SchedulerService]:
    service = SchedulerService(SchedulerConfig(log_stats=False))
    await service.start()
    yield service
    await service.stop()


async def collect(session: ClientSession, num_ends: int) -> Received:
    """Takes news until so many sequences have ended."""
    received = Received()
    async with asyncio.timeout(30):
        while len(received.reasons) + len(received.errors) < num_ends:
            received.add(await session.next_batch())
    return received


async def test_two_clients_get_their_own_tokens(service: SchedulerService) -> None:
    worker = FakeWorker()
    service.attach_local(worker)
    sessions = [service.connect("a"), service.connect("b")]
    requests = [make_request(1, [10 + i, 4, 5], seed=i, max_tokens=20) for i in range(2)]
    for session, request in zip(sessions, requests, strict=True):
        session.submit(request)
    for i, session in enumerate(sessions):
        received = await collect(session, 1)
        expected = generate([10 + i, 4, 5], requests[i].sampling, worker.info, i)
        assert received.tokens[1, 0] == expected


async def test_model_info_waits_for_the_first_worker(service: SchedulerService) -> None:
    session = service.connect("a")
    assert (await session.next_message()).ready is False  # type: ignore[union-attr]
    waiting = asyncio.create_task(session.model_info())
    await asyncio.sleep(0)
    assert not waiting.done()
    service.attach_local(FakeWorker())
    assert (await waiting).model == "fake-model"
    assert (await session.next_message()).ready is True  # type: ignore[union-attr]
