"""What a turn of the scheduler's loop and a message of a peer cost beside the step itself."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import generate_latest

from support.engine_driver import make_request
from support.fake_worker import FakeWorker, worker_info
from support.local_engine import serve
from support.patience import PATIENCE_SECONDS
from taco_proto.config import SchedulerConfig
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.replica import Replica
from taco_scheduler.kv.block_ids import block_ids
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.metrics.exposition import EngineCollector
from taco_scheduler.server.heartbeat_timeout import until_silent
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.stream_protocol import StreamError
from taco_scheduler.server.turn_loop import TurnLoop
from taco_scheduler.server.worker_links import RemoteWorkerLink

NUM_WORKERS = 8


async def numbers(count: int, then: asyncio.Event | None = None) -> AsyncIterator[int]:
    for number in range(count):
        yield number
    if then is not None:
        await then.wait()


async def test_a_message_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at

    def counting(when: float, *arguments: Any, **named: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *arguments, **named)

    monkeypatch.setattr(loop, "call_at", counting)
    assert [number async for number in until_silent(numbers(1000), 60.0)] == list(range(1000))
    assert len(timers) == 1


async def test_a_silent_peer_runs_into_the_heartbeat_timeout() -> None:
    heard: list[int] = []

    async def read() -> None:
        async for number in until_silent(numbers(3, asyncio.Event()), 0.05):
            heard.append(number)  # noqa: PERF401 (what came before the error counts)

    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(StreamError) as error:
            await read()
    assert error.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert heard == [0, 1, 2]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancelled_reader_is_no_heartbeat_timeout() -> None:
    async def read() -> None:
        async for _ in until_silent(numbers(1, asyncio.Event()), 60.0):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_workers_whose_steps_are_all_sent_are_not_planned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = SchedulerService(SchedulerConfig(log_stats=False))
    links = [RemoteWorkerLink(worker_info(name=f"worker {i}")) for i in range(NUM_WORKERS)]
    for link in links:
        service.attach(link)
    session = service.connect("client")
    for handle in range(4 * NUM_WORKERS):
        session.submit(make_request(handle, [1 + handle, 2, 3], max_tokens=50))
    planned: list[str] = []
    plan = Engine.plan

    def noting(engine: Engine, replica: Replica, now: float) -> Any:
        planned.append(replica.name)
        return plan(engine, replica, now)

    monkeypatch.setattr(Engine, "plan", noting)
    service._send_plans()
    assert sorted(planned) == sorted(2 * [link.info.name for link in links]), "a plan a step"
    planned.clear()
    service._send_plans()
    assert planned == []


async def test_a_turn_leaves_the_timer_of_a_later_deadline_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers: list[float] = []
    set_timer = TurnLoop._set_timer

    def counting(turns: TurnLoop, deadline: float) -> None:
        timers.append(deadline)
        set_timer(turns, deadline)

    monkeypatch.setattr(TurnLoop, "_set_timer", counting)
    async with serve(FakeWorker(worker_info(eos_token_ids=(), drafts_itself=False))) as service:
        loop_time = asyncio.get_running_loop().time()
        session = service.connect("client")
        session.submit(make_request(1, [1, 2, 3], max_tokens=60, deadline=loop_time + 600))
        num_tokens = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while num_tokens < 60:
                num_tokens += len((await session.next_batch()).token_ids)
    assert len(timers) <= 2


def test_tables_that_grow_together_grow_as_they_would_one_by_one() -> None:
    together, alone = (BlockManager(64, 4) for _ in range(2))
    namespace = CacheNamespace("", "")
    prompts = [bytes(4 * count) for count in (3, 8, 9)]
    tables = []
    for manager in (together, alone):
        made = [manager.allocate(p, len(p) // 4, namespace, read_cache=False) for p in prompts]
        tables.append([table for table in made if table is not None])
    lengths = [5, 8, 21]
    counts, blocks = together.extend_all(tables[0], np.array(lengths, np.int32))
    one_by_one = [
        alone.extend(t, n) or block_ids() for t, n in zip(tables[1], lengths, strict=True)
    ]
    assert counts == [len(appended) for appended in one_by_one]
    assert list(blocks) == [block for appended in one_by_one for block in appended]
    assert [t.blocks for t in tables[0]] == [t.blocks for t in tables[1]]
    assert together.num_free_blocks == alone.num_free_blocks


async def test_metrics_are_collected_on_the_loop_and_rendered_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[str, threading.Thread] = {}
    collect, render = EngineCollector.collect, generate_latest

    def noting_collect(collector: EngineCollector) -> Any:
        threads["collect"] = threading.current_thread()
        return collect(collector)

    def noting_render(registry: Any) -> bytes:
        threads["render"] = threading.current_thread()
        return render(registry)

    monkeypatch.setattr(EngineCollector, "collect", noting_collect)
    monkeypatch.setattr("taco_common.metrics.generate_latest", noting_render)
    service = SchedulerService(SchedulerConfig(log_stats=False))
    service.attach(RemoteWorkerLink(worker_info()))
    page = await service.prometheus()
    assert b"taco:workers{" in page
    assert threads["collect"] is threading.current_thread()
    assert threads["render"] is not threading.current_thread()
