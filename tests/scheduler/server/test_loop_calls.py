"""Calls between event loops keep their order, share wake-ups and lose no error."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.patience import PATIENCE_SECONDS
from taco_scheduler.server.loop_calls import LoopCalls


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_posted_calls_run_in_order_with_one_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wake_ups: list[Any] = []
    call_soon = loop.call_soon_threadsafe

    def counting(callback: Any, *arguments: Any) -> Any:
        wake_ups.append(callback)
        return call_soon(callback, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    ran: list[int] = []
    calls = LoopCalls(loop)
    for number in range(100):
        calls.post(ran.append, number)
    await asyncio.sleep(0)
    assert ran == list(range(100))
    assert len(wake_ups) == 1


async def test_a_call_that_is_posted_by_a_call_runs_too() -> None:
    calls, ran = LoopCalls(asyncio.get_running_loop()), asyncio.Event()
    calls.post(calls.post, ran.set)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await ran.wait()


async def test_a_failed_call_does_not_stop_the_next_one() -> None:
    loop = asyncio.get_running_loop()
    errors: list[str] = []
    loop.set_exception_handler(lambda _, context: errors.append(repr(context["exception"])))
    ran: list[int] = []
    calls = LoopCalls(loop)
    calls.post(int, "x")
    calls.post(ran.append, 1)
    await asyncio.sleep(0)
    assert ran == [1]
    assert "ValueError" in errors[0]


async def test_a_call_returns_its_result_to_the_loop_of_the_caller(
    other_loop: asyncio.AbstractEventLoop,
) -> None:
    calls = LoopCalls(other_loop)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await calls.call(threading.get_ident) != threading.get_ident()
        with pytest.raises(ValueError, match="invalid literal"):
            await calls.call(int, "x")


async def test_a_cancelled_caller_does_not_stop_the_call(
    other_loop: asyncio.AbstractEventLoop,
) -> None:
    calls, may_run, ran = LoopCalls(other_loop), threading.Event(), threading.Event()
    calls.post(may_run.wait, PATIENCE_SECONDS)
    caller = asyncio.create_task(calls.call(ran.set))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_run.set()
    assert await asyncio.to_thread(ran.wait, PATIENCE_SECONDS)


async def test_calls_to_a_closed_loop_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    LoopCalls(loop).post(print, "never")
