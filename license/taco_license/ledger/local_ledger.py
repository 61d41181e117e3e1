"""The ledger of a server that is alone: leases count from memory, and SQLite outlives restarts."""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

from taco_license.document.keys import PublicKeys
from taco_license.errors import LicenseError, NotStoredError
from taco_license.ledger.leases import LeaseTable
from taco_license.ledger.ledger import (
    LIMITED_EVENTS,
    MAX_AUDITED_CHANGES,
    Ask,
    Grant,
    Held,
    already_expired,
    expired,
    hold,
    in_use,
    more_changes,
    no_license,
    no_seat,
    not_licensed,
    not_newer,
    summary,
)
from taco_license.ledger.license_clock import LicenseClock
from taco_license.ledger.rate_limit import MinuteLimit
from taco_license.ledger.sqlite_store import AuditEntry, Store, StoredLease

logger = logging.getLogger("taco.license")

# How much of the time a server may forget that is killed.
CLOCK_STEP_SECONDS = 60.0


class LocalLedger:
    """See `Ledger`. All of its methods are of one thread, and none waits for anything.

    That thread is what makes a seat go to one alone; the store has no second user. The store gives
    leases back to a server that starts again: a disk that is full stops no worker, while a license
    is not replaced before the new one is on disk.

    Args:
        store: closed with the ledger.
        wall: seconds since the epoch.
        monotonic: seconds of a clock that never goes back, by which leases lapse.
    """

    tick_seconds = 5.0

    def __init__(
        self,
        store: Store,
        keys: PublicKeys,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.held: Held | None = None
        self.num_failures = 0
        self.is_working = True
        self.leases = LeaseTable()
        self._store = store
        self._monotonic = monotonic
        self._wall = wall
        self._clock = LicenseClock(wall, store.latest())
        self._stored_latest = self._clock.latest
        self._serial = 0
        self._changes = MinuteLimit(MAX_AUDITED_CHANGES, monotonic)
        self._restore(keys)

    @property
    def num_seats(self) -> int:
        return len(self.leases)

    def now(self) -> float:
        return self._clock.now()

    def seconds_behind(self) -> float:
        return self._clock.seconds_behind()

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        await self.tick()
        self._store.close()

    async def tick(self) -> None:
        self._take_lapsed()
        if excess := self._changes.take_excess():
            await self.note("more", detail=more_changes(excess))
        if self._clock.now() >= self._stored_latest + CLOCK_STEP_SECONDS:
            self._write(lambda: self._store.set_latest(self._clock.latest))
            self._stored_latest = self._clock.latest

    async def replace(self, new: Held) -> None:
        license_ = new.license
        is_same = self.held is not None and new.document == self.held.document
        if license_.serial <= self._serial and not is_same:
            raise not_newer(license_.serial, self._serial)
        # By the machine's clock alone: the latest time may be what this license is to mend.
        if new.expires <= self._wall():
            raise already_expired(license_)
        if is_same:
            return
        entry = AuditEntry(time=self._clock.text(), event="imported", detail=summary(license_))
        try:
            self._store.replace_document(new.document, license_.serial, license_.issued, (entry,))
        except sqlite3.Error as error:
            self._count_failure(error)
            raise NotStoredError("the license could not be stored; the one before holds") from None
        # What the issuer signs today is said of today: so a clock that once stood in a far
        # future is mended, and no older license can be used for it.
        self._clock.latest = self._stored_latest = license_.issued
        self.held, self._serial = new, license_.serial
        self._drop_unlicensed(new.gpus)

    async def take(self, ask: Ask) -> Grant:
        self._take_lapsed()
        seconds = self._check(ask)
        new: list[StoredLease] = []
        taken_over: list[StoredLease] = []  # by a successor of the holder
        for gpu in ask.gpus:
            lease = self.leases.get(gpu)
            if lease is None:
                new.append(StoredLease(gpu, ask.instance, ask.started))
            elif lease.started < ask.started:
                taken_over.append(StoredLease(gpu, ask.instance, ask.started))
        if new:
            self._record("granted", new)
        if taken_over:
            self._write(lambda: self._store.change_leases((), put=taken_over))
        self.leases.extend(ask.gpus, ask.instance, ask.started, self._monotonic())
        return Grant(bool(new), seconds)

    async def release(self, ask: Ask) -> None:
        self._take_lapsed()
        mine: list[StoredLease] = []
        for gpu in ask.gpus:
            lease = self.leases.get(gpu)
            if lease and lease.instance == ask.instance and lease.started <= ask.started:
                mine.append(StoredLease(gpu, ask.instance, ask.started))
        self._end("released", mine)

    async def note(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        entry = AuditEntry(
            time=self._clock.text(), event=event, gpu=gpu, instance=instance, detail=detail
        )
        self._write(lambda: self._store.change_leases([entry]))

    def _restore(self, keys: PublicKeys) -> None:
        for lease in self._store.leases():  # their holders may have asked while nobody was there
            self.leases.extend((lease.gpu,), lease.instance, lease.started, self._monotonic())
        stored = self._store.document()
        if stored is None:
            logger.warning("there is no license yet")
            return
        document, self._serial = stored
        try:
            held = hold(document, keys)
            if held.license.serial != self._serial:  # it would bring an older one back
                self._serial = held.license.serial
                raise LicenseError("its serial is not the one that was stored with it")
            self.held = held
        except LicenseError as error:  # such as: of an issuer that is not trusted any more
            logger.error("the stored license is of no use: %s", error)

    def _check(self, ask: Ask) -> float:
        """For how many seconds the license is yet good, if all may be given."""
        if self.held is None:
            raise no_license()
        seconds = self.held.expires - self._clock.now()
        if seconds <= 0:
            raise expired(self.held.license)
        num_new = 0
        for gpu in ask.gpus:
            if gpu not in self.held.gpus:
                raise not_licensed(gpu)
            lease = self.leases.get(gpu)
            if lease is None:
                num_new += 1
            elif lease.instance != ask.instance:
                raise in_use(gpu, lease.instance)
        limit = self.held.license.access_limit
        if num_new and limit and len(self.leases) + num_new > limit:
            raise no_seat(len(self.leases), limit, num_new)
        return seconds

    def _take_lapsed(self) -> None:
        lapsed = self.leases.take_lapsed(self._monotonic())
        if lapsed:
            self._record(
                "lapsed", [StoredLease(each.gpu, each.instance, each.started) for each in lapsed]
            )

    def _drop_unlicensed(self, licensed: frozenset[str]) -> None:
        gone = [lease for lease in self.leases if lease.gpu not in licensed]
        self._end("dropped", [StoredLease(each.gpu, each.instance, each.started) for each in gone])

    def _end(self, event: str, leases: Sequence[StoredLease]) -> None:
        if leases:
            self.leases.drop(lease.gpu for lease in leases)
            self._record(event, leases)

    def _record(self, event: str, leases: Sequence[StoredLease]) -> None:
        text = self._clock.text()
        entries = [
            AuditEntry(time=text, event=event, gpu=lease.gpu, instance=lease.instance)
            for lease in leases
            if event not in LIMITED_EVENTS or self._changes.passes()
        ]
        for lease in leases:
            logger.info("%s: %s for %s", event, lease.gpu, lease.instance)
        if event == "granted":
            self._write(lambda: self._store.change_leases(entries, put=leases))
        else:
            gpus = [lease.gpu for lease in leases]
            self._write(lambda: self._store.change_leases(entries, drop=gpus))

    def _write(self, change: Callable[[], None]) -> None:
        """What may be lost: seats are told again by their holders, refusals are counted too."""
        try:
            change()
            self.is_working = True
        except sqlite3.Error as error:
            self._count_failure(error)

    def _count_failure(self, error: sqlite3.Error) -> None:
        self.num_failures += 1
        self.is_working = False
        logger.error("cannot store: %s", error)
