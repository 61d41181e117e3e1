"""Heartbeat timeout: a worker or draft worker that sends nothing for too long is lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import grpc

from taco_scheduler.server.stream_protocol import StreamError

Message = TypeVar("Message")


async def until_silent(messages: AsyncIterator[Message], seconds: float) -> AsyncIterator[Message]:
    """Yields the messages of a peer that sends heartbeats.

    Raises:
        StreamError: heartbeat timeout: no message arrived for `seconds`.
    """
    watch = _HeartbeatTimeout(seconds)
    try:
        async for message in messages:
            watch.is_waiting = False
            yield message
            watch.wait()
    except asyncio.CancelledError:
        if not watch.has_cancelled():
            raise
        raise StreamError(grpc.StatusCode.DEADLINE_EXCEEDED, f"silent for {seconds:g} s") from None
    finally:
        watch.close()


class _HeartbeatTimeout:
    """Cancels the current task once it has waited `seconds` for one message.

    One timer serves many messages: if a message arrived before the timer fires, the timer is set
    again for the remaining time. An `asyncio.timeout` for each message would cost a tenth of the
    message's processing time.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancels_before = task.cancelling()
        self._seconds = seconds
        self._has_expired = False
        self.wait()
        self._timer = self._loop.call_later(seconds, self._check)

    def wait(self) -> None:
        """Starts the wait for the next message."""
        self.is_waiting = True
        self._since = self._loop.time()

    def has_cancelled(self) -> bool:
        """Whether the task was cancelled by this timeout alone."""
        return self._has_expired and self._task.uncancel() <= self._num_cancels_before

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        rest = self._since + self._seconds - self._loop.time()
        if self.is_waiting and rest <= 0:
            self._has_expired = True
            self._task.cancel()
        else:
            rest = rest if self.is_waiting else self._seconds
            self._timer = self._loop.call_later(rest, self._check)
