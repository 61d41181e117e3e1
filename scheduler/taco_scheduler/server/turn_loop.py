"""Runs the scheduler's turns on an event loop: after something happened, or at a deadline.

A turn is a plain callback, not a task. It runs in the next pass of the event loop, so that
everything that arrives in one pass shares a turn.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable

logger = logging.getLogger("taco.scheduler")


class TurnLoop:
    """Runs `turn` once for any number of requests that came before it.

    Args:
        turn: returns the time (`time.monotonic`) at which the next turn is due; None: no deadline.
        on_failure: called after `turn` raised; no turn runs after that.
    """

    def __init__(self, turn: Callable[[], float | None], on_failure: Callable[[], None]) -> None:
        self._turn = turn
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf

    def start(self) -> None:
        """Begins on the running event loop, with a turn if one was requested before."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        if self._is_due:
            self._loop.call_soon(self._run)

    def stop(self) -> None:
        """No more turns; safe to call twice, and before `start`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    @property
    def is_running(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def until_ended(self) -> None:
        """Waits until `stop` was called or a turn failed."""
        assert self._ended is not None
        await asyncio.wait([self._ended])

    def request(self) -> None:
        """Has a turn run soon."""
        if self._is_due:
            return
        self._is_due = True
        if self._loop is not None:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        if not self.is_running:
            return
        self._is_due = False
        try:
            deadline = self._turn()
        except Exception as error:
            logger.exception("the scheduler loop died")
            self._on_failure()
            assert self._ended is not None
            self._ended.set_exception(error)
        else:
            if deadline is not None and deadline < self._timer_due:
                self._set_timer(deadline)

    def _set_timer(self, deadline: float) -> None:
        """Requests a turn at the deadline. Deadlines of steps move with every step: a timer that
        has become too early is kept, and causes one turn that does nothing.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = deadline
        delay = max(0.0, deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_due = None, math.inf
        self.request()
