"""The ledger that several license servers share in Redis. Without Redis no seat is granted.

Lua scripts change the seats. A script first compares the license version that the server knows with
the current one, so that no server grants seats under an old license. A server verifies the
signature of each license that it reads from Redis.
"""

import asyncio
import contextlib
import logging
import time
from hashlib import sha256
from typing import Any

from redis.exceptions import ResponseError

from taco_common.redis_link import Command, RedisLink
from taco_common.redis_queue import RedisQueue
from taco_license.document.keys import PublicKeys
from taco_license.document.license_file import MAX_NUMBER
from taco_license.errors import LedgerUnavailableError, LicenseError
from taco_license.ledger.ledger import (
    Grant,
    SeatRequest,
    VerifiedLicense,
    already_expired,
    expired,
    in_use,
    no_license,
    no_seat,
    not_licensed,
    not_newer,
    summary,
    verify_document,
)
from taco_license.ledger.redis_scripts import (
    AUDIT,
    DIGITS,
    KEYS,
    MAX_AUDIT_ENTRIES,
    REDIS_TIME,
    RELEASE,
    REPLACE,
    STATE,
    TAKE,
    TICK,
    script,
)
from taco_proto.config import RedisConfig

logger = logging.getLogger("taco.license")

# Attempts of a request, if the license is replaced after each read.
MAX_TRIES = 4
# Maximum wait for Redis at start; the server then answers requests without it.
START_SECONDS = 2.0
# Timeout for writing or reading a license, which may have megabytes.
DOCUMENT_SECONDS = 5.0


class RedisLedger:
    """See `Ledger`. A license that another server imported becomes current here within two seconds,
    and before the next seat is granted.

    Args:
        clock: see `redis_scripts.script`.

    Raises:
        ConfigurationError: see `RedisLink`.
    """

    tick_seconds = 1.0

    def __init__(self, config: RedisConfig, keys: PublicKeys, *, clock: str = REDIS_TIME) -> None:
        self.current: VerifiedLicense | None = None
        self.num_seats = 0
        self.num_failures = 0
        self._keys = keys
        self._version = b""  # last known version of the license in Redis
        self._invalid_version = b""  # that version, if the file in Redis does not match it
        self._latest = self._now = 0  # milliseconds since the epoch
        self._seen = time.monotonic()  # when Redis last gave the time
        self._link = RedisLink(config)
        self._tick, self._take, self._release, self._replace = (
            self._link.add_script(script(body, clock)) for body in (TICK, TAKE, RELEASE, REPLACE)
        )
        self._queue = RedisQueue(self._link, self._log_redis_error)
        self._loading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_working(self) -> bool:
        return self._link.trusted

    def now(self) -> float:
        """See `Ledger`. While Redis is unavailable, the time advances with the local clock."""
        away = 0.0 if self.is_working else time.monotonic() - self._seen
        return self._latest / 1000 + away

    def clock_lag_seconds(self) -> float:
        return max(0.0, (self._latest - self._now) / 1000)

    async def start(self) -> None:
        """Starts to connect to Redis, and waits up to `START_SECONDS` for the connection."""
        linked = asyncio.Event()
        self._link.on_trust(linked.set)
        self._link.start()
        self._task = asyncio.create_task(self._queue.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await linked.wait()
        await self.tick()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._link.close()

    async def tick(self) -> None:
        with contextlib.suppress(LedgerUnavailableError):  # already counted
            await self._refresh()

    async def replace(self, new: VerifiedLicense) -> None:
        async with self._loading:
            outcome, *details = await self._write(
                new, "imported", new.license.issued, new.expires, self._invalid_version
            )
            if outcome == b"older":
                raise not_newer(new.license.serial, int(details[0][:DIGITS]))
            if outcome == b"expired":
                raise already_expired(new.license)
            self.current, self._version, self._invalid_version = new, _version(new), b""

    async def take(self, request: SeatRequest) -> Grant:
        for _ in range(MAX_TRIES):
            version, current = self._version, self.current
            if current is None or not current.gpus.issuperset(request.gpus):
                await self._refresh()
                if self._version == version:
                    raise self._rejection(current, request)
                continue
            limit, expires = current.license.access_limit, _milliseconds(current.expires)
            asked = (_digits(request.started), request.instance, *request.gpus)
            outcome, *details = await self._ask(_call(self._take, version, expires, limit, *asked))
            match outcome:
                case b"granted" | b"renewed":
                    (self._latest,) = details
                    return Grant(outcome == b"granted", current.expires - self.now())
                case b"expired":
                    (self._latest,) = details
                    raise expired(current.license)
                case b"in_use":
                    raise in_use(*(detail.decode() for detail in details))
                case b"no_seat":
                    num_taken, num_new = details
                    raise no_seat(num_taken, limit, num_new)
            await self._refresh()
        raise LedgerUnavailableError(
            f"the license was replaced {MAX_TRIES} times during the request: try again"
        )

    async def release(self, request: SeatRequest) -> None:
        asked = (_digits(request.started), request.instance, *request.gpus)
        await self._ask(_call(self._release, *asked))

    async def record_event(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        fields = {"event": event, "gpu": gpu, "instance": instance, "detail": detail}
        given = [text for name, value in fields.items() if value for text in (name, value)]
        await self._ask(("XADD", AUDIT, "MAXLEN", "~", MAX_AUDIT_ENTRIES, "*", *given))

    def _rejection(self, current: VerifiedLicense | None, request: SeatRequest) -> Exception:
        """Why the server rejects the request without a script; the time was just read."""
        if current is None:
            return no_license()
        if current.expires <= self.now():
            return expired(current.license)
        return not_licensed(next(gpu for gpu in request.gpus if gpu not in current.gpus))

    # ----------------------------------------------------------------- license

    async def _refresh(self) -> None:
        """Reads the time, and the license if its version has changed."""
        if await self._current_version() == self._version:
            return
        async with self._loading:  # one load for all requests that noticed the change
            # Reads the version again: this server may have imported a license in the meantime.
            version = await self._current_version()
            if version != self._version:
                await self._load(version)

    async def _current_version(self) -> bytes:
        version: bytes
        version, latest, self._now, self.num_seats = await self._ask(_call(self._tick))
        self._seen = time.monotonic()
        if version == self._version:
            self._latest = latest
        return version

    async def _load(self, version: bytes) -> None:
        if self.current is not None and version[:DIGITS] < self._version[:DIGITS]:
            await self._restore_license(self.current)
        version, document, latest = await self._read()
        current, invalid_version = self._check(version, document)
        if invalid_version and self.current is not None:
            await self._restore_license(self.current, invalid_version)
            return
        self.current, self._invalid_version = current, invalid_version
        self._version, self._latest = version, int(latest or 0)

    async def _read(self) -> tuple[bytes, bytes, bytes]:
        """Version, file and latest time in Redis; empty if missing."""
        replies = await self._link.run(
            ("HMGET", STATE, "version", "document", "latest"), seconds=DOCUMENT_SECONDS
        )
        if replies is None or isinstance(replies[0], ResponseError):
            raise self._unavailable()
        version, document, latest = (part or b"" for part in replies[0])
        return version, document, latest

    def _check(self, version: bytes, document: bytes) -> tuple[VerifiedLicense | None, bytes]:
        """The verified license, or None; and `version` if the file does not match it, or b""."""
        if not document:
            return None, version
        try:
            current = verify_document(document, self._keys)
        except LicenseError as error:  # for example, the issuer is not trusted here
            logger.error("the license in Redis is invalid: %s", error)
            return None, b""
        if _version(current) != version:
            logger.error("the license in Redis is invalid: it does not match its version")
            return None, version
        logger.info("current license: %s", summary(current.license))
        return current, b""

    async def _restore_license(
        self, current: VerifiedLicense, invalid_version: bytes = b""
    ) -> None:
        """Writes the license back that Redis has lost.

        Redis loses a license if it restarts from an older file, or fails over to a replica that was
        behind. An older license must not become current that way.
        """
        outcome, *_ = await self._write(current, "restored", self.now(), 0.0, invalid_version)
        if outcome == b"done":
            serial = current.license.serial
            logger.error("Redis had lost the license with serial %d; restored it", serial)

    async def _write(
        self,
        current: VerifiedLicense,
        event: str,
        latest: float,
        expires: float,
        invalid_version: bytes,
    ) -> list[Any]:
        file = (_version(current), current.document, _milliseconds(expires))
        details = (invalid_version, _milliseconds(latest), event, summary(current.license))
        command = _call(self._replace, *file, *details, *current.gpus)
        replies = await self._link.run(command, seconds=DOCUMENT_SECONDS)
        if replies is None:
            raise self._unavailable("Redis does not answer; the license may or may not be stored")
        if isinstance(replies[0], ResponseError):
            self._log_redis_error(replies[0])
            raise self._unavailable()
        return replies[0]

    # ------------------------------------------------------------------- Redis

    async def _ask(self, command: Command) -> Any:
        reply = await self._queue.ask(command)
        if reply is None:
            raise self._unavailable()
        return reply

    def _unavailable(self, message: str = "Redis does not answer") -> LedgerUnavailableError:
        self.num_failures += 1
        return LedgerUnavailableError(message)

    def _log_redis_error(self, error: ResponseError) -> None:
        logger.error("Redis rejected a command: %s", error)


def _call(name: str, *arguments: str | bytes | int) -> Command:
    """The Redis command that runs a script."""
    return ("EVALSHA", name, len(KEYS), *KEYS, *arguments)


def _version(current: VerifiedLicense) -> bytes:
    """The version of a license in Redis. Versions compare like serials."""
    return f"{_digits(current.license.serial)}:{sha256(current.document).hexdigest()}".encode()


def _digits(number: int) -> str:
    assert 0 <= number <= MAX_NUMBER
    return f"{number:0{DIGITS}d}"


def _milliseconds(seconds: float) -> int:
    """Milliseconds, rounded down, so that a license that Redis accepts has time left."""
    return int(seconds * 1000)
