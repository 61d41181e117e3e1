"""Calls functions on the event loop of another thread, with one wake-up for many calls.

The scheduler has two threads with an event loop each: the engine's, and the one that serves gRPC.
Waking a thread costs tens of microseconds, so calls that are posted while the loop is still busy
share a wake-up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopCalls:
    """Runs posted calls on one event loop, in the order in which they were posted.

    Args:
        loop: the loop that runs the calls.
        around: wraps each run; it is given the function that runs the calls and must call it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        around: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.loop = loop
        self._around = around
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_scheduled = False

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Runs the call on the loop soon; may be called in any thread, and after the loop closed.

        An exception of the function goes to the loop's exception handler.
        """
        self._calls.append((function, arguments))
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop is closed: nothing waits for the call
                self.loop.call_soon_threadsafe(self._run)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs the call on the loop and returns its result to the caller's loop.

        A caller that is cancelled does not stop the call.

        Raises:
            Exception: what the function raised.
        """
        caller = asyncio.get_running_loop()
        done: asyncio.Future[T] = caller.create_future()

        def run() -> None:
            try:
                result = function(*arguments)
            except Exception as error:
                answer(error, None)
            else:
                answer(None, result)

        def answer(error: Exception | None, result: Any) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed
                caller.call_soon_threadsafe(_resolve, done, error, result)

        self.post(run)
        return await done

    def _run(self) -> None:
        self._is_scheduled = False
        if self._around is None:
            self._run_calls()
        else:
            self._around(self._run_calls)

    def _run_calls(self) -> None:
        # Calls that are posted meanwhile have scheduled the next run.
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            try:
                function(*arguments)
            except Exception as error:
                self.loop.call_exception_handler(
                    {"message": f"call of {function!r} failed", "exception": error}
                )


def _resolve(future: "asyncio.Future[T]", error: Exception | None, result: T) -> None:
    if future.done():  # the caller was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
