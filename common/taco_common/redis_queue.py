"""Batches commands for Redis: commands that arrive during a round trip are sent together."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from taco_common.redis_link import Command, RedisLink

_log = logging.getLogger("taco.redis")


class RedisQueue:
    """Sends commands in order; a caller waits for two round trips at most. For one event loop.

    The order matters: a released lease must free capacity before the next request is admitted.

    Args:
        on_error: called with the error of each rejected command.
    """

    def __init__(self, link: RedisLink, on_error: Callable[[ResponseError], None]) -> None:
        self._link = link
        self._on_error = on_error
        self._queue: list[tuple[Command, asyncio.Future[Any] | None]] = []
        self._has_queue = asyncio.Event()

    async def ask(self, command: Command) -> Any:
        """The reply; None: Redis did not answer in time, or rejected the command."""
        if not self._link.trusted:
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((command, answer))
        self._has_queue.set()
        return await answer

    def tell(self, command: Command) -> None:
        """Sends a command without waiting for the reply."""
        if self._link.trusted:
            self._queue.append((command, None))
            self._has_queue.set()

    async def run(self) -> None:
        """Sends commands until cancelled."""
        while True:
            await self._has_queue.wait()
            self._has_queue.clear()
            batch, self._queue = self._queue, []
            replies = await self._run([command for command, _ in batch])
            for (_, future), reply in zip(batch, replies or [None] * len(batch), strict=True):
                is_wrong = isinstance(reply, ResponseError)
                if is_wrong:
                    self._on_error(reply)
                if future is not None and not future.done():
                    future.set_result(None if is_wrong else reply)

    async def _run(self, commands: list[Command]) -> list[Any] | None:
        try:
            return await self._link.run(*commands)
        except Exception:  # a bug here must not block the callers
            _log.exception("cannot send commands to Redis")
            return None
