"""Registers the scheduler in Redis, so that gateways discover it (service registration)."""

import asyncio
import contextlib
import logging
import random
import secrets

from taco_common.redis_link import RedisLink
from taco_proto.config import RedisConfig
from taco_proto.registry import (
    HASH_KEY_KEY,
    INDEX_KEY,
    INDEX_SECONDS,
    KEY_BYTES,
    LIFETIME_SECONDS,
    WRITE_SECONDS,
    SchedulerRecord,
    encode_record,
    record_key,
)
from taco_scheduler.core.replica import Replica
from taco_scheduler.server.hot_prefixes import HotPrefixes
from taco_scheduler.server.service import SchedulerService

# KEYS: the index. ARGV: the scheduler's address; seconds after which an address leaves the index.
# It uses the clock of Redis: a scheduler whose clock is ahead would remove the others.
NOTE_IN_INDEX = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
"""

logger = logging.getLogger("taco.scheduler")


class Advertiser:
    """Writes the scheduler's record every `WRITE_SECONDS`; the record expires by its TTL.

    While Redis is unreachable nothing is written, and gateways use the schedulers that they know.

    Args:
        address: that gateways dial.

    Raises:
        ConfigurationError: the configuration of Redis is invalid.
    """

    def __init__(self, service: SchedulerService, redis: RedisConfig, address: str) -> None:
        self._service = service
        self._due = asyncio.Event()
        self._link = RedisLink(redis)
        self._link.on_trust(self._due.set)
        self._note_in_index = self._link.add_script(NOTE_IN_INDEX)
        self._address = address
        # All schedulers agree on one key, so that a gateway hashes a prompt once.
        self._prefixes = HotPrefixes(secrets.token_bytes(KEY_BYTES))
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._link.start()
        self._task = asyncio.create_task(self._keep_writing(), name="advertiser")

    async def withdraw(self) -> None:
        """Deletes the record, so that gateways send new requests elsewhere. Safe to call twice,
        and before `start`.
        """
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self._link.run(("DEL", record_key(self._address)), ("ZREM", INDEX_KEY, self._address))
        await self._link.close()

    async def _keep_writing(self) -> None:
        while True:
            self._due.clear()
            try:
                await self._write()
            except Exception:  # a bug here must not stop the registration
                logger.exception("cannot write the scheduler's record to Redis")
            # Jitter: schedulers that started together should not write together.
            delay = WRITE_SECONDS * random.uniform(0.9, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):  # wait_for may swallow a cancellation
                    await self._due.wait()

    async def _write(self) -> None:
        if not self._link.trusted:
            return
        caches = [replica.worker.blocks for replica in self._replicas()]
        for _ in self._prefixes.collect(caches):
            await asyncio.sleep(0)  # a step may be due
        record = encode_record(self._record())
        replies = await self._link.run(
            ("SET", HASH_KEY_KEY, self._prefixes.key, "NX"),
            ("GET", HASH_KEY_KEY),
            ("SET", record_key(self._address), record, "PX", int(LIFETIME_SECONDS * 1000)),
            ("EVALSHA", self._note_in_index, 1, INDEX_KEY, self._address, INDEX_SECONDS),
        )
        if replies is None:
            return
        for reply in replies:
            if isinstance(reply, Exception):
                logger.warning("Redis rejects the scheduler's record: %s", reply)
                return
        common = replies[1]
        if isinstance(common, bytes) and len(common) == KEY_BYTES and common != self._prefixes.key:
            self._prefixes = HotPrefixes(common)

    def _record(self) -> SchedulerRecord:
        replicas, model = self._replicas(), self._service.model
        return SchedulerRecord(
            address=self._address,
            model=model.model,
            block_size=model.block_size,
            num_workers=len(replicas),
            load=sum(replica.load for replica in replicas),
            hash_key=self._prefixes.key,
            prefixes=self._prefixes.found,
        )

    def _replicas(self) -> list[Replica]:
        """The replicas that accept new requests."""
        return [replica for replica in self._service.engine.replicas if replica.accepts_requests]
