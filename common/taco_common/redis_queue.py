"""Commands for Redis, in few messages: what gathers while one is under way goes together."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from taco_common.redis_link import Command, RedisLink

_log = logging.getLogger("taco.redis")


class RedisQueue:
    """Belongs to one event loop. Nobody waits for more than two messages, and Redis gets commands
    in order: who has ended makes room for a successor.

    Args:
        on_refusal: told of each command that was wrong.
    """

    def __init__(self, link: RedisLink, on_refusal: Callable[[ResponseError], None]) -> None:
        self._link = link
        self._on_refusal = on_refusal
        self._queue: list[tuple[Command, asyncio.Future[Any] | None]] = []
        self._has_queue = asyncio.Event()

    async def ask(self, command: Command) -> Any:
        """The reply; None: there is none in time, or the command was wrong."""
        if not self._link.trusted:
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((command, answer))
        self._has_queue.set()
        return await answer

    def tell(self, command: Command) -> None:
        """As `ask`, for those who need no reply."""
        if self._link.trusted:
            self._queue.append((command, None))
            self._has_queue.set()

    async def run(self) -> None:
        """Talks to Redis, until it is cancelled."""
        while True:
            await self._has_queue.wait()
            self._has_queue.clear()
            batch, self._queue = self._queue, []
            replies = await self._run([command for command, _ in batch])
            for (_, future), reply in zip(batch, replies or [None] * len(batch), strict=True):
                is_wrong = isinstance(reply, ResponseError)
                if is_wrong:
                    self._on_refusal(reply)
                if future is not None and not future.done():
                    future.set_result(None if is_wrong else reply)

    async def _run(self, commands: list[Command]) -> list[Any] | None:
        try:
            return await self._link.run(*commands)
        except Exception:  # a bug here must not keep anybody waiting
            _log.exception("Redis could not be asked")
            return None
