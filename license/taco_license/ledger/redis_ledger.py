"""The ledger that several license servers share in Redis. Nothing is given that it does not know.

What changes a seat is a script, which compares the license that the server knows with the one that
holds: no server gives seats under an old one. A server checks the signature of what it reads.
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
from taco_license.errors import AwayError, LicenseError
from taco_license.ledger.ledger import (
    Ask,
    Grant,
    Held,
    already_expired,
    expired,
    hold,
    in_use,
    no_license,
    no_seat,
    not_licensed,
    not_newer,
    summary,
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

# Of one license after another that takes the place of the one that a server has just read.
MAX_TRIES = 4
# Then requests are answered, also without Redis.
START_SECONDS = 2.0
# To write or read a license, which may be megabytes.
DOCUMENT_SECONDS = 5.0


class RedisLedger:
    """See `Ledger`. A license that another server took holds here within two seconds, and before
    the next seat is given.

    Args:
        clock: see `redis_scripts.script`.

    Raises:
        ConfigurationError: see `RedisLink`.
    """

    tick_seconds = 1.0

    def __init__(self, config: RedisConfig, keys: PublicKeys, *, clock: str = REDIS_TIME) -> None:
        self.held: Held | None = None
        self.num_seats = 0
        self.num_failures = 0
        self._keys = keys
        self._version = b""  # of the license that Redis has, as far as it is known
        self._useless = b""  # that version, if what stands with it is not its license
        self._latest = self._now = 0  # milliseconds since the epoch
        self._seen = time.monotonic()  # when Redis said so
        self._link = RedisLink(config)
        self._tick, self._take, self._release, self._replace = (
            self._link.add_script(script(body, clock)) for body in (TICK, TAKE, RELEASE, REPLACE)
        )
        self._queue = RedisQueue(self._link, self._complain)
        self._loading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_working(self) -> bool:
        return self._link.trusted

    def now(self) -> float:
        """A license expires also while Redis is away."""
        away = 0.0 if self.is_working else time.monotonic() - self._seen
        return self._latest / 1000 + away

    def seconds_behind(self) -> float:
        return max(0.0, (self._latest - self._now) / 1000)

    async def start(self) -> None:
        """Begins to connect, and gives the link a moment to come about."""
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
        with contextlib.suppress(AwayError):  # which is counted
            await self._look()

    async def replace(self, new: Held) -> None:
        async with self._loading:
            outcome, *details = await self._write(
                new, "imported", new.license.issued, new.expires, self._useless
            )
            if outcome == b"older":
                raise not_newer(new.license.serial, int(details[0][:DIGITS]))
            if outcome == b"expired":
                raise already_expired(new.license)
            self.held, self._version, self._useless = new, _version(new), b""

    async def take(self, ask: Ask) -> Grant:
        for _ in range(MAX_TRIES):
            version, held = self._version, self.held
            if held is None or not held.gpus.issuperset(ask.gpus):
                await self._look()
                if self._version == version:
                    raise self._refusal(held, ask)
                continue
            limit, expires = held.license.access_limit, _milliseconds(held.expires)
            asked = (_digits(ask.started), ask.instance, *ask.gpus)
            outcome, *details = await self._ask(_call(self._take, version, expires, limit, *asked))
            match outcome:
                case b"granted" | b"renewed":
                    (self._latest,) = details
                    return Grant(outcome == b"granted", held.expires - self.now())
                case b"expired":
                    (self._latest,) = details
                    raise expired(held.license)
                case b"in_use":
                    raise in_use(*(detail.decode() for detail in details))
                case b"no_seat":
                    num_taken, num_new = details
                    raise no_seat(num_taken, limit, num_new)
            await self._look()
        raise AwayError("the license changes faster than it can be read")

    async def release(self, ask: Ask) -> None:
        asked = (_digits(ask.started), ask.instance, *ask.gpus)
        await self._ask(_call(self._release, *asked))

    async def note(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        fields = {"event": event, "gpu": gpu, "instance": instance, "detail": detail}
        given = [text for name, value in fields.items() if value for text in (name, value)]
        await self._ask(("XADD", AUDIT, "MAXLEN", "~", MAX_AUDIT_ENTRIES, "*", *given))

    def _refusal(self, held: Held | None, ask: Ask) -> Exception:
        """Why not even Redis can give the seats, whose time was just read."""
        if held is None:
            return no_license()
        if held.expires <= self.now():
            return expired(held.license)
        return not_licensed(next(gpu for gpu in ask.gpus if gpu not in held.gpus))

    # ----------------------------------------------------------------- license

    async def _look(self) -> None:
        """Reads the time, and the license where another one holds."""
        if await self._holding_version() == self._version:
            return
        async with self._loading:  # once, however many have noticed
            # Asked again: a license may have been uploaded here since the answer was given.
            version = await self._holding_version()
            if version != self._version:
                await self._load(version)

    async def _holding_version(self) -> bytes:
        version: bytes
        version, latest, self._now, self.num_seats = await self._ask(_call(self._tick))
        self._seen = time.monotonic()
        if version == self._version:
            self._latest = latest
        return version

    async def _load(self, version: bytes) -> None:
        if self.held is not None and version[:DIGITS] < self._version[:DIGITS]:
            await self._put_back(self.held)
        version, document, latest = await self._read()
        held, useless = self._check(version, document)
        if useless and self.held is not None:
            await self._put_back(self.held, useless)
            return
        self.held, self._useless = held, useless
        self._version, self._latest = version, int(latest or 0)

    async def _read(self) -> tuple[bytes, bytes, bytes]:
        """Version, file and latest time, each empty where there is none."""
        replies = await self._link.run(
            ("HMGET", STATE, "version", "document", "latest"), seconds=DOCUMENT_SECONDS
        )
        if replies is None or isinstance(replies[0], ResponseError):
            raise self._away()
        version, document, latest = (part or b"" for part in replies[0])
        return version, document, latest

    def _check(self, version: bytes, document: bytes) -> tuple[Held | None, bytes]:
        """The license, and the version if no server has written that with this file."""
        if not document:
            return None, version
        try:
            held = hold(document, self._keys)
        except LicenseError as error:  # such as: of an issuer that is not trusted here
            logger.error("the license in Redis is of no use: %s", error)
            return None, b""
        if _version(held) != version:
            logger.error("the license in Redis is of no use: it is not the one of its version")
            return None, version
        logger.info("the license that holds now: %s", summary(held.license))
        return held, b""

    async def _put_back(self, held: Held, useless: bytes = b"") -> None:
        """Redis has forgotten a license: restarted with what was on disk, or a replica took over
        that was behind. An older one must not come back with it, nor by somebody's hand.
        """
        outcome, *_ = await self._write(held, "restored", self.now(), 0.0, useless)
        if outcome == b"done":
            serial = held.license.serial
            logger.error("Redis had lost the license of serial %d; it was put back", serial)

    async def _write(
        self, held: Held, event: str, latest: float, expires: float, useless: bytes
    ) -> list[Any]:
        file = (_version(held), held.document, _milliseconds(expires))
        happened = (useless, _milliseconds(latest), event, summary(held.license))
        command = _call(self._replace, *file, *happened, *held.gpus)
        replies = await self._link.run(command, seconds=DOCUMENT_SECONDS)
        if replies is None:
            raise self._away("Redis does not answer; whether the license was stored is not known")
        if isinstance(replies[0], ResponseError):
            self._complain(replies[0])
            raise self._away()
        return replies[0]

    # ------------------------------------------------------------------- Redis

    async def _ask(self, command: Command) -> Any:
        reply = await self._queue.ask(command)
        if reply is None:
            raise self._away()
        return reply

    def _away(self, message: str = "Redis does not answer") -> AwayError:
        self.num_failures += 1
        return AwayError(message)

    def _complain(self, error: ResponseError) -> None:
        logger.error("what Redis has makes no sense: %s", error)


def _call(name: str, *arguments: str | bytes | int) -> Command:
    """The command that runs a script."""
    return ("EVALSHA", name, len(KEYS), *KEYS, *arguments)


def _version(held: Held) -> bytes:
    """Compares as its serial does."""
    return f"{_digits(held.license.serial)}:{sha256(held.document).hexdigest()}".encode()


def _digits(number: int) -> str:
    assert 0 <= number <= MAX_NUMBER
    return f"{number:0{DIGITS}d}"


def _milliseconds(seconds: float) -> int:
    """Rounded down: a license that is good has more than nothing left."""
    return int(seconds * 1000)
