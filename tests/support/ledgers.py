"""A license service over either ledger, with its clocks in the test's hands."""

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from support.licenses import KEYS, Clock, make_service
from support.patience import PATIENCE_SECONDS, until
from support.redis_server import RedisServer
from taco_license.document.keys import PublicKeys
from taco_license.ledger.leases import LEASE_SECONDS, UNSEEN_SECONDS
from taco_license.ledger.redis_ledger import RedisLedger
from taco_license.ledger.redis_scripts import AUDIT, DIGITS, SEATS
from taco_license.ledger.sqlite_store import Store
from taco_license.server.service import LicenseService
from taco_proto.config import RedisConfig

STEP_SECONDS = UNSEEN_SECONDS - 1  # between ticks: no outage
Event = tuple[str, str | None, str | None]  # what happened, the GPU, the instance


class Harness(ABC):
    """Attributes:
    service: as it is after a restart, too.
    """

    service: LicenseService

    @abstractmethod
    async def open(self, keys: PublicKeys = KEYS) -> None: ...

    async def advance(self, seconds: float) -> None:
        """Time passes, while servers tick. After the end of all leases the rest passes at once."""
        watched = min(seconds, LEASE_SECONDS + STEP_SECONDS)
        rest = seconds - watched
        while watched > STEP_SECONDS:
            await self.pass_time(STEP_SECONDS)
            await self.service.tick()
            watched -= STEP_SECONDS
        await self.pass_time(watched)
        if rest:
            await self.service.tick()
            await self.pass_time(rest)

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Time passes, while no server runs."""

    @abstractmethod
    def set_clock(self, seconds: float) -> None:
        """Moves the wall clock by `seconds`, forward or back."""

    @abstractmethod
    def seats(self) -> dict[str, tuple[str, int]]:
        """Holder and newest start, by GPU, as they are stored."""

    @abstractmethod
    def events(self) -> list[Event]:
        """The audit log."""

    async def close(self) -> None:
        await self.service.ledger.close()

    async def restart(self, keys: PublicKeys = KEYS) -> None:
        await self.close()
        await self.open(keys)


class LocalHarness(Harness):
    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self._directory = directory

    async def open(self, keys: PublicKeys = KEYS) -> None:
        self.store = Store(self._directory)
        self.service = make_service(self.store, self.clock, keys)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def set_clock(self, seconds: float) -> None:
        self.clock.wall += seconds

    def seats(self) -> dict[str, tuple[str, int]]:
        return {lease.gpu: (lease.instance, lease.started) for lease in self.store.leases()}

    def events(self) -> list[Event]:
        return [(entry.event, entry.gpu, entry.instance) for entry in self.store.audit()]


class RedisHarness(Harness):
    """Empties the server."""

    CLOCK_KEYS = ("test:seconds", "test:microseconds")
    CLOCK_RULES = (*(f"~{key}" for key in CLOCK_KEYS), "+mget")  # for users of Redis
    CLOCK = f"redis.call('MGET', '{CLOCK_KEYS[0]}', '{CLOCK_KEYS[1]}')"

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._now = Clock().wall
        self.run("FLUSHALL")

    @property
    def url(self) -> str:
        return self._server.url

    async def open(self, keys: PublicKeys = KEYS) -> None:
        self._set(self._now)
        self.service = await self.another(keys)

    async def another(
        self, keys: PublicKeys = KEYS, *, url: str | None = None, password_file: str | None = None
    ) -> LicenseService:
        """One server more, which is the test's to close."""
        config = RedisConfig(
            url=url or self.url, password_file=password_file, timeout=PATIENCE_SECONDS
        )
        ledger = RedisLedger(config, keys, clock=self.CLOCK)
        await ledger.start()

        async def is_connected() -> bool:
            return ledger.is_working

        await until(is_connected, "a link to Redis")
        await ledger.tick()
        return LicenseService(ledger, keys, monotonic=lambda: self._now)

    async def pass_time(self, seconds: float) -> None:
        self._set(self._now + seconds)

    def set_clock(self, seconds: float) -> None:
        self._set(self._now + seconds)

    def seats(self) -> dict[str, tuple[str, int]]:
        seats: dict[bytes, bytes] = self.run("HGETALL", SEATS)
        return {
            gpu.decode(): (seat[DIGITS:].decode(), int(seat[:DIGITS]))
            for gpu, seat in seats.items()
        }

    def events(self) -> list[Event]:
        events: list[Event] = []
        for _, pairs in self.run("XRANGE", AUDIT, "-", "+"):
            entry = {name.decode(): value.decode() for name, value in pairs.items()}
            events.append((entry["event"], entry.get("gpu"), entry.get("instance")))
        return events

    def run(self, *command: str | bytes | int | float) -> Any:
        """The reply of Redis to a command."""
        return self._server.run(*command)

    def _set(self, now: float) -> None:
        self._now = now
        part, whole = math.modf(now)
        seconds, microseconds = self.CLOCK_KEYS
        self.run("MSET", seconds, int(whole), microseconds, int(part * 1e6))
