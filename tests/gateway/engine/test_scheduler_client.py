"""The client against a real scheduler over a Unix socket, with a worker that is exact."""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.fake_worker import FakeWorker
from support.link import Link
from support.live_scheduler import (
    PROMPT,
    GatedWorker,
    expected_tokens,
    kill,
    read,
    read_each,
    request,
    scheduler,
    until_ready,
    until_submitted,
)
from support.patience import PATIENCE_SECONDS, until
from support.serving import free_port
from taco_gateway.engine import failover, scheduler_client, scheduler_link
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.engine.scheduler_client import SchedulerClient
from taco_proto.config import SchedulerConfig
from taco_proto.registry import DECODE_TOKENS
from taco_proto.requests import GenerateRequest, Tenant
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/scheduler.sock"


@pytest.fixture
async def client(address: str) -> AsyncIterator[SchedulerClient]:
    client = SchedulerClient(address)
    client.start()
    yield client
    await client.close()


async def test_many_requests_share_a_stream(address: str, client: SchedulerClient) -> None:
    async with scheduler(address, FakeWorker()):
        await until_ready(client)
        info = client.model_info()
        assert info is not None
        assert (info.model, info.max_model_len) == ("fake-model", 128)
        asked = [request(seed=seed) for seed in range(20)]
        streams = [client.generate(one) for one in asked]
        for one, stream in zip(asked, streams, strict=True):
            assert await read(stream) == expected_tokens(one)
        stats = await client.stats()
        assert (stats.num_workers, stats.num_running, stats.num_waiting) == (1, 0, 0)
        assert b"vllm:" in stats.prometheus


async def test_closing_frees_the_blocks(address: str, client: SchedulerClient) -> None:
    worker = GatedWorker()
    async with scheduler(address, worker):
        await until_ready(client)
        stream = client.generate(request(max_tokens=100))
        worker.allow(6)
        await read(stream, 3)
        stream.close()
        worker.allow(10)
        await until_submitted(client, 0)
        stats = await client.stats()
        assert stats.num_free_blocks == stats.num_blocks


async def test_a_refusal_is_an_engine_error(address: str, client: SchedulerClient) -> None:
    async with scheduler(address, FakeWorker()):
        await until_ready(client)
        asked = request()
        too_long = GenerateRequest(
            handle=0,
            request_id="r",
            token_ids=array("i", [5] * 200).tobytes(),
            sampling=asked.sampling,
        )
        with pytest.raises(EngineError) as raised:
            await read(client.generate(too_long))
        assert raised.value.code == 400
        assert await read(client.generate(asked)) == expected_tokens(asked)


async def test_a_schedulers_restart_is_a_pause(address: str, client: SchedulerClient) -> None:
    asked = [request(seed=seed) for seed in range(5)]
    async with scheduler(address, worker := GatedWorker()):
        await until_ready(client)
        streams = [client.generate(one) for one in asked]
        await until_submitted(client, 5)
        worker.allow(8)
        fronts = [await read(stream, 3) for stream in streams]
        untouched = client.generate(request(n=2))
    await until_ready(client, is_ready=False)
    async with scheduler(address, FakeWorker()):
        for one, front, stream in zip(asked, fronts, streams, strict=True):
            assert front + await read(stream) == expected_tokens(one)
        # Nothing had come of this one, so that it could begin anew.
        assert len([update async for update in untouched]) >= 2


async def test_a_scheduler_hands_over_to_the_next_at_its_address() -> None:
    old_port, new_port = free_port(), free_port()
    begun, later = request(seed=1), [request(seed=seed) for seed in range(2, 6)]
    with Link(old_port) as link:
        client = SchedulerClient(f"127.0.0.1:{link.port}")
        client.start()
        async with scheduler(f"127.0.0.1:{old_port}", worker := GatedWorker()) as old:
            await until_ready(client)
            begun_stream = client.generate(begun)
            worker.allow(8)
            front = await read(begun_stream, 3)
            draining = asyncio.create_task(old.drain(PATIENCE_SECONDS))
            await asyncio.sleep(0)
            streams = [client.generate(one) for one in later]
            await until(lambda: has_left(client), "the model info that says it drains")
            info = client.model_info()
            assert info is not None
            assert info.ready, "requests are taken all the while"
            async with scheduler(f"127.0.0.1:{new_port}", None) as new:
                link.redirect(new_port)
                await until(lambda: has_requests(new, len(later)), "the requests at the next one")
                assert client.model_info() == info
                new.attach_local(FakeWorker())
                for one, stream in zip(later, streams, strict=True):
                    assert await read(stream) == expected_tokens(one)
                worker.allow(1000)
                assert front + await read(begun_stream) == expected_tokens(begun)
                assert old.engine.counters.generation_tokens == 40, "it ended where it was"
                await draining
        await client.close()


async def has_left(client: SchedulerClient) -> bool:
    return bool(client._leaving)


async def has_requests(service: SchedulerService, number: int) -> bool:
    return service.engine.num_requests == number


async def test_a_handover_without_a_successor_times_out(
    address: str, client: SchedulerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_client, "_HANDOVER_S", 0.0)
    async with scheduler(address, FakeWorker()) as service:
        await until_ready(client)
        await service.drain(PATIENCE_SECONDS)
        await until_ready(client, is_ready=False)


async def test_a_request_whose_link_broke_is_charged_once(
    address: str, client: SchedulerClient
) -> None:
    tenant = Tenant(name="a", max_requests_per_minute=2, max_tokens_per_minute=2 * len(PROMPT))
    service = SchedulerService(SchedulerConfig(listen=address, log_stats=False))
    await service.start()
    server = SchedulerServer(service, address)
    await server.start()

    async def until_held(num_requests: int) -> None:
        async def is_so() -> bool:
            return service.engine.num_requests == num_requests

        await until(is_so, f"{num_requests} requests at the scheduler")

    asked = replace(request(max_tokens=1), tenant=tenant)
    first = client.generate(asked)  # it waits for a worker
    await until_held(1)
    await kill(server)
    await until_held(0)
    server = SchedulerServer(service, address)
    await server.start()
    await until_held(1)
    second = client.generate(asked)
    await until_held(2)
    with pytest.raises(EngineError, match="the limit of 2 requests a minute"):
        await read(client.generate(asked))
    service.attach_local(FakeWorker())
    assert await read(first) == await read(second) == expected_tokens(asked)[:1]
    await service.stop()
    await server.stop()


async def test_several_sequences_continue_when_the_scheduler_is_lost(
    address: str, client: SchedulerClient
) -> None:
    """No token of any sequence is lost or repeated; one that has ended does not run again."""
    asked = request(n=4)
    got: dict[int, list[int]] = {}
    async with scheduler(address, worker := GatedWorker()):
        await until_ready(client)
        stream = client.generate(asked)
        worker.allow(8)
        await read_each(
            stream, got, until=lambda: len(got) == 4 and min(map(len, got.values())) > 2
        )
        stream.cancel(2)
        # Each step gives each sequence a token, but the others join in step 2: step 1 computes the
        # prompt in sequence 0. So no token is on its way when the scheduler ends.
        num_before = {0: 8, 1: 7, 3: 7}
        await read_each(
            stream, got, until=lambda: all(len(got[i]) == num_before[i] for i in num_before)
        )
    async with scheduler(address, FakeWorker()) as service:
        await read_each(stream, got)
        num_generated = service.engine.counters.generation_tokens
    assert num_generated == sum(40 - count for count in num_before.values())
    for index in (0, 1, 3):
        assert got[index] == expected_tokens(asked, index)
    assert got[2] == expected_tokens(asked, 2)[: len(got[2])]


async def test_requests_fail_when_another_model_is_served(
    address: str, client: SchedulerClient
) -> None:
    async with scheduler(address, worker := GatedWorker()):
        await until_ready(client)
        stream = client.generate(request())
        worker.allow(8)
        await read(stream, 2)
    async with scheduler(address, GatedWorker(model="other")):
        with pytest.raises(EngineError) as raised:
            await read(stream)
        assert raised.value.code == 503


async def test_requests_for_a_model_that_is_gone_are_cancelled(
    address: str, client: SchedulerClient
) -> None:
    async with scheduler(address, None) as service:
        lost = service.attach_local(GatedWorker())
        await until_ready(client)
        stream = client.generate(request())
        await until(lambda: has_requests(service, 1), "the request")
        service.on_worker_lost(lost, "a test")
        await until_ready(client, is_ready=False)
        service.attach_local(GatedWorker(model="other"))
        with pytest.raises(EngineError, match="Another model"):
            await read(stream)
        await until(lambda: has_requests(service, 0), "the cancellation")
        assert service.engine.counters.generation_tokens == 0


async def test_a_scheduler_that_drains_ends_its_answers_although_another_model_comes() -> None:
    old_port, new_port = free_port(), free_port()
    with Link(old_port) as link:
        client = SchedulerClient(f"127.0.0.1:{link.port}")
        client.start()
        async with scheduler(f"127.0.0.1:{old_port}", worker := GatedWorker()) as old:
            await until_ready(client)
            asked = request(seed=1)
            stream = client.generate(asked)
            worker.allow(8)
            front = await read(stream, 3)
            draining = asyncio.create_task(old.drain(PATIENCE_SECONDS))
            await until(lambda: has_left(client), "the model info that says it drains")
            async with scheduler(f"127.0.0.1:{new_port}", GatedWorker(model="other")):
                link.redirect(new_port)
                await until(lambda: serves(client, "other"), "the other model")
                worker.allow(1000)
                assert front + await read(stream) == expected_tokens(asked)
                await draining
        await client.close()


async def test_an_answer_of_another_model_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    old_port, new_port = free_port(), free_port()
    with Link(old_port) as link:
        client = SchedulerClient(f"127.0.0.1:{link.port}")
        client.start()
        async with scheduler(f"127.0.0.1:{new_port}", other := GatedWorker(model="other")) as new:
            async with scheduler(f"127.0.0.1:{old_port}", worker := GatedWorker()) as old:
                await until_ready(client)
                stream = client.generate(request(seed=1))
                worker.allow(8)
                await read(stream, 3)
                draining = asyncio.create_task(old.drain(PATIENCE_SECONDS))
                await until(lambda: has_left(client), "the model info that says it drains")
                link.redirect(new_port)
                await until(lambda: serves(client, "other"), "the other model")
            # The old one is gone, with the answer that it has begun.
            other.allow(1000)
            with pytest.raises(EngineError, match="Another model"):
                await read(stream)
            assert new.engine.counters.generation_tokens == 0
            draining.cancel()
        await client.close()


async def serves(client: SchedulerClient, model: str) -> bool:
    info = client.model_info()
    return info is not None and info.model == model


async def test_an_unreadable_message_ends_the_link_only(
    address: str, client: SchedulerClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with scheduler(address, worker := GatedWorker()):
        await until_ready(client)
        asked = request()
        stream = client.generate(asked)
        worker.allow(4)
        front = await read(stream, 1)
        (link,) = client._links.values()
        dispatch = link.requests.dispatch

        def fail_once(*_: object, **__: object) -> None:
            link.requests.dispatch = dispatch  # type: ignore[method-assign]
            raise IndexError("columns")

        link.requests.dispatch = fail_once  # type: ignore[method-assign]
        worker.allow(1000)
        assert front + await read(stream) == expected_tokens(asked)
    assert "cannot be read" in caplog.text


async def test_a_request_after_the_client_was_closed_fails(address: str) -> None:
    client = SchedulerClient(address)
    client.start()
    async with scheduler(address, FakeWorker()):
        await until_ready(client)
        await client.close()
        with pytest.raises(EngineError) as raised:
            await read(client.generate(request()))
    assert raised.value.code == 503


async def test_the_load_of_a_scheduler_is_that_of_its_open_requests(
    address: str, client: SchedulerClient
) -> None:
    worker = GatedWorker()
    async with scheduler(address, worker):
        await until_ready(client)
        (link,) = client._links.values()
        streams = [client.generate(request(seed=seed, n=1 + seed % 2)) for seed in range(4)]
        streams[0].num_missing_tokens = 5  # counted when it is attached, as 0
        assert link.own_load == 6 * DECODE_TOKENS
        client._unassigned.detach(streams[0], link)
        assert link.own_load == 5 * DECODE_TOKENS
        client._unassigned.table.remove(streams[0])
        link.requests.attach(streams[0])
        assert link.own_load == 6 * DECODE_TOKENS + 5
        worker.allow(1000)
        streams[1].close()
        for stream in (streams[0], *streams[2:]):
            await read(stream)
        assert link.own_load == 0


async def test_a_link_that_closes_during_a_scrape_is_left_out(
    address: str, client: SchedulerClient
) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async with scheduler(address, FakeWorker()):
        await until_ready(client)
        other = client._add("unix:/nowhere")
        other.connected = True
        other.stats = cancelled  # type: ignore[method-assign,assignment]
        assert (await client.stats()).num_workers == 1
        del client._links["unix:/nowhere"]


async def test_a_deadline_does_not_end_an_answer_whose_scheduler_restarts(
    address: str, client: SchedulerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran for longer than it might have waited."""
    skipped = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped)
    for module in (failover, scheduler_client, scheduler_link):
        monkeypatch.setattr(module, "time", clock)
    asked = replace(request(), deadline=time.monotonic() + 600)
    async with scheduler(address, worker := GatedWorker()):
        await until_ready(client)
        stream = client.generate(asked)
        worker.allow(6)
        front = await read(stream, 3)
        skipped = 1000.0
    await until_ready(client, is_ready=False)
    async with scheduler(address, FakeWorker()):
        assert front + await read(stream) == expected_tokens(asked)


async def test_a_deadline_holds_while_there_is_no_scheduler(client: SchedulerClient) -> None:
    asked = request()
    stream = client.generate(
        GenerateRequest(
            handle=0,
            request_id="r",
            token_ids=asked.token_ids,
            sampling=asked.sampling,
            deadline=1.0,
        )
    )
    assert client.model_info() is None
    with pytest.raises(EngineError) as raised:
        await read(stream)
    assert raised.value.code == 504
    with pytest.raises(EngineError) as raised:
        await client.stats()
    assert raised.value.code == 503


async def test_the_seconds_that_a_request_may_wait_are_measured_when_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 50.0
    monkeypatch.setattr(scheduler_link, "time", SimpleNamespace(monotonic=lambda: now))
    asked = replace(request(), deadline=now + 600)
    for waited in (0.0, 7.0, 700.0):  # the request is sent again and again
        queue = scheduler_link._SendQueue()
        queue.submit(asked)
        now = 50.0 + waited
        message = await queue.next_message()
        assert message is not None
        assert message.submit.timeout_seconds == 600 - waited
    queue.submit(request())
    message = await queue.next_message()
    assert message is not None
    assert not message.submit.HasField("timeout_seconds")


async def test_closing_the_client_fails_what_runs(address: str) -> None:
    client = SchedulerClient(address)
    client.start()
    stream = client.generate(request())
    await client.close()
    with pytest.raises(EngineError) as raised:
        await read(stream)
    assert raised.value.code == 503


async def test_a_client_closes_at_any_moment_of_its_dialling(address: str) -> None:
    async def dial_for(seconds: float) -> None:
        client = SchedulerClient(address)
        client.start()
        await asyncio.sleep(seconds)
        await client.close()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(dial_for(number / 2000) for number in range(200)))
