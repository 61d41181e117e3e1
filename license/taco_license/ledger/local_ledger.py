"""The ledger of a single license server: leases in memory, with a copy in SQLite for restarts."""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

from taco_license.document.keys import PublicKeys
from taco_license.errors import LicenseError, NotStoredError
from taco_license.ledger.leases import UNSEEN_SECONDS, LeaseTable
from taco_license.ledger.ledger import (
    LIMITED_EVENTS,
    MAX_AUDITED_CHANGES,
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
    unrecorded_changes,
    verify_document,
)
from taco_license.ledger.license_clock import LicenseClock
from taco_license.ledger.rate_limit import RateLimit
from taco_license.ledger.sqlite_store import AuditEntry, Store, StoredLease

logger = logging.getLogger("taco.license")

# Interval between stored times: a killed server loses at most this much of its clock.
CLOCK_STEP_SECONDS = 60.0


class LocalLedger:
    """See `Ledger`. All methods run in one thread and never wait.

    The single thread makes each grant atomic, and the store has no other user. Leases are restored
    from the store when the server restarts. A full disk does not stop workers: leases in memory
    count. A license is replaced only after the new one is on disk.

    Args:
        store: the SQLite store; the ledger closes it.
        wall: seconds since the epoch.
        monotonic: seconds of a clock that never goes back, for lease timeouts.
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
        self.current: VerifiedLicense | None = None
        self.num_failures = 0
        self.is_working = True
        self.leases = LeaseTable()
        self._store = store
        self._monotonic = monotonic
        self._seen = monotonic()  # when lapsed leases were last freed
        self._wall = wall
        self._clock = LicenseClock(wall, store.latest())
        self._stored_latest = self._clock.latest
        self._serial = 0
        self._changes = RateLimit(MAX_AUDITED_CHANGES, monotonic)
        self._restore(keys)

    @property
    def num_seats(self) -> int:
        return len(self.leases)

    def now(self) -> float:
        return self._clock.now()

    def clock_lag_seconds(self) -> float:
        return self._clock.lag_seconds()

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        await self.tick()
        self._store.close()

    async def tick(self) -> None:
        self._free_lapsed()
        if excess := self._changes.pop_excess():
            await self.record_event("more", detail=unrecorded_changes(excess))
        if self._clock.now() >= self._stored_latest + CLOCK_STEP_SECONDS:
            self._write(lambda: self._store.set_latest(self._clock.latest))
            self._stored_latest = self._clock.latest

    async def replace(self, new: VerifiedLicense) -> None:
        license_ = new.license
        is_same = self.current is not None and new.document == self.current.document
        if license_.serial <= self._serial and not is_same:
            raise not_newer(license_.serial, self._serial)
        # Compares with the machine's clock alone: the new license may correct the latest time.
        if new.expires <= self._wall():
            raise already_expired(license_)
        if is_same:
            return
        entry = AuditEntry(time=self._clock.text(), event="imported", detail=summary(license_))
        try:
            self._store.replace_document(new.document, license_.serial, license_.issued, (entry,))
        except sqlite3.Error as error:
            self._count_failure(error)
            raise NotStoredError(
                "the license could not be stored; the current license stays in use"
            ) from None
        # The issue time is trustworthy. It corrects a clock that was once set far into the future,
        # and an older license cannot be used to turn the clock back.
        self._clock.latest = self._stored_latest = license_.issued
        self.current, self._serial = new, license_.serial
        self._drop_unlicensed(new.gpus)

    async def take(self, request: SeatRequest) -> Grant:
        self._free_lapsed()
        seconds = self._check(request)
        new: list[StoredLease] = []
        taken_over: list[StoredLease] = []  # by a newer client of the same instance
        for gpu in request.gpus:
            lease = self.leases.get(gpu)
            if lease is None:
                new.append(StoredLease(gpu, request.instance, request.started))
            elif lease.started < request.started:
                taken_over.append(StoredLease(gpu, request.instance, request.started))
        if new:
            self._record("granted", new)
        if taken_over:
            self._write(lambda: self._store.change_leases((), put=taken_over))
        self.leases.extend(request.gpus, request.instance, request.started, self._monotonic())
        return Grant(bool(new), seconds)

    async def release(self, request: SeatRequest) -> None:
        self._free_lapsed()
        mine: list[StoredLease] = []
        for gpu in request.gpus:
            lease = self.leases.get(gpu)
            if lease and lease.instance == request.instance and lease.started <= request.started:
                mine.append(StoredLease(gpu, request.instance, request.started))
        self._end("released", mine)

    async def record_event(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        entry = AuditEntry(
            time=self._clock.text(), event=event, gpu=gpu, instance=instance, detail=detail
        )
        self._write(lambda: self._store.change_leases([entry]))

    def _restore(self, keys: PublicKeys) -> None:
        for lease in self._store.leases():  # holders get a full lease to renew after the restart
            self.leases.extend((lease.gpu,), lease.instance, lease.started, self._monotonic())
        stored = self._store.document()
        if stored is None:
            logger.warning("no license is imported yet: upload one to /ls")
            return
        document, self._serial = stored
        try:
            current = verify_document(document, keys)
            if current.license.serial != self._serial:  # would bring an older license back
                self._serial = current.license.serial
                raise LicenseError("its serial differs from the stored serial")
            self.current = current
        except LicenseError as error:  # for example, the issuer is not trusted any more
            logger.error("the stored license is invalid: %s", error)

    def _check(self, request: SeatRequest) -> float:
        """Checks that all seats may be granted; returns the seconds until the license expires.

        Raises:
            LeaseRejectedError: a seat may not be granted.
        """
        if self.current is None:
            raise no_license()
        seconds = self.current.expires - self._clock.now()
        if seconds <= 0:
            raise expired(self.current.license)
        num_new = 0
        for gpu in request.gpus:
            if gpu not in self.current.gpus:
                raise not_licensed(gpu)
            lease = self.leases.get(gpu)
            if lease is None:
                num_new += 1
            elif lease.instance != request.instance:
                raise in_use(gpu, lease.instance)
        limit = self.current.license.access_limit
        if num_new and limit and len(self.leases) + num_new > limit:
            raise no_seat(len(self.leases), limit, num_new)
        return seconds

    def _free_lapsed(self) -> None:
        now = self._monotonic()
        if now - self._seen >= UNSEEN_SECONDS:
            self.leases.extend_all(now)
        self._seen = now
        lapsed = self.leases.pop_lapsed(now)
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
            if event not in LIMITED_EVENTS or self._changes.allows()
        ]
        for lease in leases:
            logger.info("%s: %s for %s", event, lease.gpu, lease.instance)
        if event == "granted":
            self._write(lambda: self._store.change_leases(entries, put=leases))
        else:
            gpus = [lease.gpu for lease in leases]
            self._write(lambda: self._store.change_leases(entries, drop=gpus))

    def _write(self, change: Callable[[], None]) -> None:
        """Writes to the store. A failure is counted, and loses only what can be rebuilt: holders
        renew their seats, and rejections are also counted.
        """
        try:
            change()
            self.is_working = True
        except sqlite3.Error as error:
            self._count_failure(error)

    def _count_failure(self, error: sqlite3.Error) -> None:
        self.num_failures += 1
        self.is_working = False
        logger.error("cannot write to the license database: %s", error)
