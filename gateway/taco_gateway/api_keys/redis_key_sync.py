"""Keeps the gateway's copy of the API keys in sync with Redis, so that all gateways agree.

The gateway polls a version that every change replaces. It keeps its copy while Redis is
unavailable. If Redis has lost all data (FLUSHALL, a restart without persistence), a gateway that
was in sync recently restores the keys.
"""

import asyncio
import logging
import time
from functools import lru_cache

from redis.exceptions import ResponseError

from taco_common.redis_link import RedisLink
from taco_gateway.api_keys.key_options import KeyOptionError
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.api_keys.redis_key_store import (
    KEYS,
    SECRET,
    SECRET_BYTES,
    VERSION,
    KeyRecord,
    decode_record,
    new_version,
)

POLL_SECONDS = 1.0
# All keys at once may take longer than a request would wait.
READ_SECONDS = 2.0
MAX_CACHED_RECORDS = 2**16
# A gateway that was out of sync for longer may have missed that a key was revoked.
RESTORE_SECONDS = 60.0

# KEYS: keys, secret, version. ARGV: secret, version, then name and record of each owner.
_RESTORE = """
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('DEL', KEYS[1])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], ARGV[2])
return 1
"""

logger = logging.getLogger("taco.gateway.keys")


class RedisKeySync:
    """Keeps a key ring in sync with Redis.

    Args:
        link: not started yet.
        ring: created without keys.

    Attributes:
        num_bad_records: invalid records; the former record of their owners stays in use.
    """

    def __init__(self, link: RedisLink, ring: KeyRing) -> None:
        self.num_bad_records = 0
        self._link = link
        self._ring = ring
        self._restore_script = link.add_script(_RESTORE)
        self._version: bytes | None = None
        self._secret = b""
        self._records: dict[bytes, KeyRecord] = {}
        # A change touches one or two of possibly thousands of records.
        self._decode_record = lru_cache(MAX_CACHED_RECORDS)(decode_record)
        self._in_sync_at = 0.0
        self._last_problem = ""
        self._wake_up = asyncio.Event()
        link.on_trust(self._wake_up.set)

    @property
    def num_owners(self) -> int:
        return len(self._records)

    async def run(self) -> None:
        """Polls every second, and as soon as Redis answers again."""
        while True:
            self._wake_up.clear()
            try:
                await self._poll()
            except Exception:  # a bug here must not end the polling
                logger.exception("cannot read the API keys in Redis")
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake_up.wait()
            except TimeoutError:
                pass

    async def _poll(self) -> None:
        replies = await self._link.run(("GET", VERSION))
        if replies is None:
            return
        (version,) = replies
        if version is None and self._version is not None:
            await self._restore()
        elif version is None:
            self._report("Redis holds no API keys: every request is rejected until you add some")
            self._ring.replace_digests(self._secret, ())
        elif version != self._version:
            await self._read()
        else:
            self._in_sync_at = time.monotonic()

    async def _read(self) -> None:
        replies = await self._link.run(
            ("GET", VERSION),
            ("GET", SECRET),
            ("HGETALL", KEYS),
            seconds=READ_SECONDS,
            atomic=True,
        )
        if replies is None:
            return
        version, secret, found = replies
        is_wrong = any(isinstance(reply, ResponseError) for reply in replies)
        if is_wrong or secret is None or len(secret) != SECRET_BYTES:
            self._report("the API keys in Redis are invalid: the former keys stay valid")
            return
        self._records = self._decode(found, keep=secret == self._secret)
        self._version, self._secret = version, secret
        self._in_sync_at = time.monotonic()
        self._ring.replace_digests(
            self._secret,
            [(digest, r.owner) for r in self._records.values() for digest in r.digests],
        )
        logger.info("read the API keys of %d owners from Redis", len(self._records))
        self._last_problem = ""

    def _decode(self, found: dict[bytes, bytes], *, keep: bool) -> dict[bytes, KeyRecord]:
        records: dict[bytes, KeyRecord] = {}
        self.num_bad_records = 0
        for name, data in found.items():
            try:
                records[name] = self._decode_record(name, data)
            except KeyOptionError as error:
                self.num_bad_records += 1
                shown = name[:128].decode(errors="replace")
                logger.error("the record of %r in Redis is invalid: %s", shown, error)
                if keep and name in self._records:
                    records[name] = self._records[name]
        return records

    async def _restore(self) -> None:
        """Restores the keys in Redis, unless another gateway already has."""
        if time.monotonic() - self._in_sync_at > RESTORE_SECONDS:
            self._report(
                "Redis has lost the API keys: the former keys stay valid; import them again"
            )
            return
        records = [
            text for name, record in self._records.items() for text in (name, record.encode())
        ]
        replies = await self._link.run(
            (
                *("EVALSHA", self._restore_script, 3, KEYS, SECRET, VERSION),
                *(self._secret, new_version(), *records),
            ),
            seconds=READ_SECONDS,
        )
        if replies == [1]:
            logger.warning("Redis had lost the API keys: they were restored")
        await self._read()

    def _report(self, problem: str) -> None:
        """Logs a problem once while it lasts."""
        if problem != self._last_problem:
            logger.error("%s", problem)
        self._last_problem = problem
