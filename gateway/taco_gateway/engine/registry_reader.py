"""Discovers schedulers: polls their records in the Redis registry."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taco_proto.registry import (
    INDEX_KEY,
    LIFETIME_SECONDS,
    MAX_SCHEDULERS,
    POLL_SECONDS,
    InvalidRecordError,
    SchedulerRecord,
    decode_record,
    record_key,
)

if TYPE_CHECKING:  # a gateway without Redis need not load its client
    from taco_common.redis_link import RedisLink

_log = logging.getLogger("taco.gateway.scheduler")


@dataclass(frozen=True, slots=True)
class SeenRecord:
    """A record and when it was written, by this machine's monotonic clock."""

    record: SchedulerRecord
    written_at: float


class RegistryReader:
    """Reads all records every `POLL_SECONDS`.

    Args:
        redis: the gateway's link; its owner starts and closes it.
        model: schedulers of other models are left out.
        tell: called with the records after each successful read.
    """

    def __init__(
        self, redis: "RedisLink", model: str, tell: Callable[[Mapping[str, SeenRecord]], None]
    ) -> None:
        self._redis = redis
        self._model = model
        self._tell = tell
        self._due = asyncio.Event()
        self._problems: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        redis.on_trust(self._due.set)

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_reading(), name="registry reader")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_reading(self) -> None:
        while True:
            self._due.clear()
            try:
                seen = await self.read()
                if seen is not None:
                    self._tell(seen)
            except Exception:  # a bug here must not stop the polling
                _log.exception("the records of schedulers could not be read")
            # Gateways that started together should not read together.
            delay = POLL_SECONDS * random.uniform(0.9, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):  # wait_for may swallow a cancellation
                    await self._due.wait()

    async def read(self) -> dict[str, SeenRecord] | None:
        """The records of the model's schedulers, by address; None: Redis is unreachable."""
        replies = await self._redis.run(("ZREVRANGE", INDEX_KEY, 0, MAX_SCHEDULERS - 1))
        if replies is None:
            return None
        if not isinstance(replies[0], list):  # the key holds something else
            self._report(INDEX_KEY, f"{replies[0]}")
            return {}
        addresses = [address.decode(errors="replace") for address in replies[0]]
        if not addresses:
            return {}
        keys = [record_key(address) for address in addresses]
        commands = [command for key in keys for command in (("GET", key), ("PTTL", key))]
        replies = await self._redis.run(*commands)
        if replies is None:
            return None
        now = time.monotonic()
        seen: dict[str, SeenRecord] = {}
        for address, data, ttl in zip(addresses, replies[::2], replies[1::2], strict=True):
            record = self._record(address, data)
            if record is not None and record.model == self._model:
                seen[address] = SeenRecord(record, now - _age(ttl))
        return seen

    def _record(self, address: str, data: Any) -> SchedulerRecord | None:
        if data is None:
            return None  # it expired
        try:
            if not isinstance(data, bytes):
                raise InvalidRecordError(f"{data}")
            record = decode_record(data, address)
        except InvalidRecordError as error:
            self._report(address, f"{error}")
            return None
        self._problems.pop(address, None)
        return record

    def _report(self, name: str, problem: str) -> None:
        """Logs a problem once, not at each read."""
        if self._problems.get(name) != problem:
            _log.warning("the record of %.255s in Redis is ignored: %s", name, problem)
            if len(self._problems) > MAX_SCHEDULERS:
                self._problems.clear()
            self._problems[name] = problem


def _age(ttl_ms: Any) -> float:
    """Seconds since a record was written, from its remaining TTL."""
    left = ttl_ms / 1000 if isinstance(ttl_ms, int) and ttl_ms > 0 else 0.0
    return max(0.0, LIFETIME_SECONDS - left)
