"""One gateway's client and several schedulers, over Unix sockets, with workers that are exact."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from support.fake_worker import FakeWorker, worker_info
from support.live_scheduler import (
    GatedWorker,
    expected_tokens,
    read,
    read_each,
    request,
    scheduler,
    until_ready,
    until_submitted,
)
from support.patience import until
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.engine.scheduler_client import SchedulerClient
from taco_proto.licenses import (
    LICENSE_INVALID,
    NEEDS_NO_LICENSE,
    LicenseState,
    WorkerLicense,
)
from taco_proto.requests import GenerateRequest
from taco_scheduler.server.service import SchedulerService

NUM_BLOCKS = worker_info().num_blocks
MISSING = WorkerLicense(LicenseState.MISSING, "expired")


@pytest.fixture
def addresses(tmp_path: Path) -> list[str]:
    return [f"unix:{tmp_path}/{name}.sock" for name in "ab"]


@asynccontextmanager
async def client_of(addresses: list[str]) -> AsyncIterator[SchedulerClient]:
    client = SchedulerClient(*addresses)
    client.start()
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(addresses: list[str]) -> AsyncIterator[SchedulerClient]:
    async with client_of(addresses) as client:
        yield client


async def until_usable(client: SchedulerClient, count: int) -> None:
    """Waits until this number of schedulers has a stream and a worker."""

    async def is_so() -> bool:
        info = client.model_info()
        return info is not None and info.ready and info.num_blocks == count * NUM_BLOCKS

    await until(is_so, f"{count} schedulers to use")


def num_requests(service: SchedulerService) -> int:
    return service.engine.num_requests


async def test_requests_go_to_all_and_stats_are_those_of_all(
    addresses: list[str], client: SchedulerClient
) -> None:
    workers = [
        GatedWorker(logits_processors=("a:B", "a:C", "a:D"), adapters=("sql", "chat", "old")),
        GatedWorker(
            max_model_len=100, logits_processors=("a:D", "a:B"), adapters=("new", "chat", "sql")
        ),
    ]
    async with scheduler(addresses[0], workers[0]) as a, scheduler(addresses[1], workers[1]) as b:
        await until_usable(client, 2)
        asked = [request([20 + number, 4, 5], seed=number) for number in range(8)]
        streams = [client.generate(one) for one in asked]
        await until_submitted(client, 8)
        assert (num_requests(a), num_requests(b)) == (4, 4)
        info, stats = client.model_info(), await client.stats()
        assert info is not None
        assert (info.max_model_len, info.num_blocks, stats.num_blocks) == (128, 128, 128)
        assert set(info.logits_processors) == {"a:B", "a:D"}
        assert set(info.adapters) == {"sql", "chat"}
        assert stats.prometheus.count(b"# TYPE taco:workers gauge") == 1
        for worker in workers:
            worker.allow(1000)
        for one, stream in zip(asked, streams, strict=True):
            assert await read(stream) == expected_tokens(one)


async def test_a_common_prefix_meets_at_one_scheduler(
    addresses: list[str], client: SchedulerClient
) -> None:
    async with (
        scheduler(addresses[0], FakeWorker()) as a,
        scheduler(addresses[1], FakeWorker()) as b,
    ):
        await until_usable(client, 2)
        for group in range(4):
            for number in range(3):
                asked = request([group + 2] * 40 + [number + 2] * 3, max_tokens=4)
                assert await read(client.generate(asked)) == expected_tokens(asked)
        computed = [service.engine.counters.prefix_cache_hits for service in (a, b)]
    # Every group's second and third request found its 40 common tokens.
    assert sum(computed) == 4 * 2 * 40


async def test_requests_of_a_dead_scheduler_continue_on_another(
    addresses: list[str], client: SchedulerClient
) -> None:
    asked = [request([20 + number, 4, 5], seed=number) for number in range(6)]
    async with AsyncExitStack() as stack:
        async with scheduler(addresses[0], worker := GatedWorker()):
            await until_usable(client, 1)
            streams = [client.generate(one) for one in asked]
            begun = client.generate(several := request(n=2))
            await until_submitted(client, 8)
            worker.allow(8)
            fronts = [await read(stream, 3) for stream in streams]
            got: dict[int, list[int]] = {}
            await read_each(begun, got, until=lambda: len(got) == 2)
            untouched = client.generate(request(n=2))
            await stack.enter_async_context(scheduler(addresses[1], FakeWorker()))
            await until_usable(client, 2)
        for one, front, stream in zip(asked, fronts, streams, strict=True):
            assert front + await read(stream) == expected_tokens(one)
        assert len([update async for update in untouched]) >= 2
        await read_each(begun, got)
        assert got == {index: expected_tokens(several, index) for index in range(2)}


async def test_what_a_scheduler_that_shuts_down_refuses_goes_to_the_other(
    addresses: list[str], client: SchedulerClient
) -> None:
    async with (
        scheduler(addresses[0], FakeWorker()) as a,
        scheduler(addresses[1], FakeWorker()) as b,
    ):
        await until_usable(client, 2)
        draining = asyncio.create_task(a.drain(60))
        await asyncio.sleep(0)
        for number in range(6):
            asked = request(seed=number)
            assert await read(client.generate(asked)) == expected_tokens(asked)
        assert b.engine.counters.prompt_tokens == 6 * 5
        await draining


async def test_a_scheduler_without_workers_gives_its_requests_back_once(
    addresses: list[str], client: SchedulerClient
) -> None:
    asked = request()
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(scheduler(addresses[0], worker := GatedWorker()))
        await until_usable(client, 1)
        stream = client.generate(asked)
        worker.allow(8)
        front = await read(stream, 3)
        b = await stack.enter_async_context(scheduler(addresses[1], other := GatedWorker()))
        await until_usable(client, 2)
        detach(a)

        async def has_moved() -> bool:
            return (num_requests(a), num_requests(b)) == (0, 1)

        await until(has_moved, "the request at the other scheduler")
        other.allow(8)
        front += await read(stream, 6)
        # Its second loss of a worker: it waits where it is, for all that the other has one again.
        a.attach_local(FakeWorker())
        await until_usable(client, 2)
        detach(b)
        await until_usable(client, 1)
        assert (num_requests(a), num_requests(b)) == (0, 1)
        b.attach_local(FakeWorker())
        assert front + await read(stream) == expected_tokens(asked)


async def test_without_a_license_requests_go_to_the_other_scheduler_as_long_as_it_has_one(
    addresses: list[str], client: SchedulerClient
) -> None:
    async with (
        scheduler(addresses[0], worker := GatedWorker(max_num_seqs=1)) as a,
        scheduler(addresses[1], None) as b,
    ):
        await until_usable(client, 1)
        begun, waiting = request(seed=1), request(seed=2, n=3)
        begun_stream, waiting_stream = client.generate(begun), client.generate(waiting)
        worker.allow(1)
        front = await read(begun_stream, 1)
        b.attach_local(FakeWorker())
        await until_usable(client, 2)
        # What waits is refused, and finds its place.
        tell(a, MISSING)
        assert len([update async for update in waiting_stream]) >= 3
        worker.allow(1000)
        assert front + await read(begun_stream) == expected_tokens(begun)
        assert a.engine.counters.generation_tokens == 40, "what had begun finished where it was"
        for number in range(4):
            asked = request(seed=number)
            assert await read(client.generate(asked)) == expected_tokens(asked)
        assert a.engine.counters.generation_tokens == 40
        # Now the other one loses its license, too.
        tell(b, WorkerLicense(LicenseState.MISSING, "no_seat"))
        await until_ready(client, is_ready=False)
        info = client.model_info()
        assert info is not None
        assert info.license_problem in ("expired", "no_seat")
        for number in range(4):
            with pytest.raises(EngineError) as raised:
                await read(client.generate(request(seed=number)))
            assert (raised.value.code, raised.value.reason) == (503, LICENSE_INVALID)
        tell(a, NEEDS_NO_LICENSE)
        await until_usable(client, 1)
        asked = request(seed=5)
        assert await read(client.generate(asked)) == expected_tokens(asked)


def tell(service: SchedulerService, license_: WorkerLicense) -> None:
    """Its only worker says so."""
    (link,) = service._replicas
    service.on_license_change(link, license_)


def detach(service: SchedulerService) -> None:
    """Its only worker is lost, as a remote one would be: the sessions stay."""
    (link,) = service._replicas
    link.is_remote = True
    service.on_worker_lost(link, "the test took it away")


async def test_a_scheduler_of_another_model_is_not_used(
    addresses: list[str], client: SchedulerClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with scheduler(addresses[0], FakeWorker()):
        await until_ready(client)
        other = FakeWorker(worker_info(model="other"))
        async with scheduler(addresses[1], other) as b:

            async def is_met() -> bool:
                return "serves other, the others fake-model: it is not used" in caplog.text

            await until(is_met, "the other scheduler")
            for number in range(4):
                asked = request(seed=number)
                assert await read(client.generate(asked)) == expected_tokens(asked)
            assert b.engine.counters.prompt_tokens == 0
            info = client.model_info()
            assert info is not None
            assert info.model == "fake-model"


async def test_requests_wait_for_the_first_scheduler_that_comes(
    addresses: list[str], client: SchedulerClient
) -> None:
    asked = request()
    stream = client.generate(asked)
    async with scheduler(addresses[1], FakeWorker()):
        assert await read(stream) == expected_tokens(asked)


async def test_a_request_that_ends_while_unassigned_is_not_sent(
    addresses: list[str], client: SchedulerClient
) -> None:
    stream, deadline = client.generate(request()), request()
    stream.close()
    late = client.generate(
        GenerateRequest(
            handle=0,
            request_id="late",
            token_ids=deadline.token_ids,
            sampling=deadline.sampling,
            deadline=1.0,
        )
    )
    with pytest.raises(EngineError) as raised:
        await read(late)
    assert raised.value.code == 504
    async with scheduler(addresses[0], FakeWorker()) as a:
        await until_ready(client)
        asked = request()
        assert await read(client.generate(asked)) == expected_tokens(asked)
        assert a.engine.counters.prompt_tokens == len(asked.token_ids) // 4
