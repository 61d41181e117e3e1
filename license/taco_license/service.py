"""The rules of licensing: which license holds, and which GPUs may serve under it now."""

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from taco_license.clock import LicenseClock
from taco_license.document import License, verify
from taco_license.errors import LeaseRefusedError, LicenseError
from taco_license.keys import PublicKeys
from taco_license.leases import LeaseTable
from taco_license.store import AuditEntry, Store, StoredLease
from taco_license.view import render_view

logger = logging.getLogger("taco.license")

# How much of the time a server may forget that is killed.
CLOCK_STEP_SECONDS = 60.0
# A clock that is corrected by less is a usual thing.
CLOCK_BEHIND_SECONDS = 300.0
# Beyond these, refusals of a minute are counted and not written down: no client may fill the disk.
MAX_AUDITED_REFUSALS = 60


class LicenseService:
    """One license and the leases under it. All of its methods are of one thread.

    That thread is what makes a seat go to one alone; the store has no second user. Leases count
    from memory, and the store gives them back to a server that starts again: a disk that is full
    stops no worker, while a license is not replaced before the new one is on disk.

    Args:
        wall: seconds since the epoch.
        monotonic: seconds of a clock that never goes back, by which leases lapse.
    """

    def __init__(
        self,
        store: Store,
        keys: PublicKeys,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._keys = keys
        self._monotonic = monotonic
        self._wall = wall
        self._clock = LicenseClock(wall, store.latest())
        self._stored_latest = self._clock.latest
        self._minute, self._refusals_of_minute = -1, 0
        self.leases = LeaseTable()
        self.outcomes: Counter[str] = Counter()  # of requests for leases
        self.imports: Counter[str] = Counter()
        self.storage_errors = 0
        self.license: License | None = None
        self._document, self._serial, self._expires = b"", 0, 0.0
        self._licensed: frozenset[str] = frozenset()
        self._restore()

    def import_license(self, document: bytes) -> License:
        """Puts the license of a file in the place of the one before.

        Raises:
            LicenseError: it is not good, has expired, or is no newer; all stays as it was.
            sqlite3.Error: it cannot be stored; all stays as it was.
        """
        try:
            license_ = self._check_import(document)
        except LicenseError as error:
            self.imports["refused"] += 1
            self._note_refusal("import_refused", detail=str(error))
            raise
        if document != self._document:
            detail = (
                f"serial {license_.serial}, {license_.customer}, {len(license_.gpus)} GPUs, "
                f"access limit {license_.access_limit}, until {license_.expired_time}"
            )
            try:
                self._store.replace_document(
                    document, license_.serial, license_.issued, self._entries("imported", detail)
                )
            except sqlite3.Error:
                self.imports["failed"] += 1
                raise
            # What the issuer signs today is said of today: so a clock that once stood in a far
            # future is mended, and no older license can be used for it.
            self._clock.latest = self._stored_latest = license_.issued
            self._use(document, license_)
            self._drop_unlicensed()
        self.imports["accepted"] += 1
        return license_

    def view(self) -> str | None:
        """The license as YAML; None: there is none."""
        return None if self.license is None else render_view(self.license)

    def lease(self, gpus: Sequence[str], instance: str, started: int) -> float:
        """Gives the seats of all `gpus` to `instance`, or lets it keep them; or of none.

        Args:
            gpus: each once.
            started: see `Lease`.

        Returns:
            How many seconds the license is yet good for.

        Raises:
            LeaseRefusedError: it may not have them.
        """
        self._take_lapsed()
        try:
            seconds = self._check_lease(gpus, instance)
        except LeaseRefusedError as refusal:
            self.outcomes[refusal.code] += 1
            self._note_refusal(
                "refused", gpu=gpus[0], instance=instance, detail=f"{refusal.code}: {refusal}"
            )
            raise
        new: list[StoredLease] = []
        taken_over: list[StoredLease] = []  # by a successor of the holder
        for gpu in gpus:
            lease = self.leases.get(gpu)
            if lease is None:
                new.append(StoredLease(gpu, instance, started))
            elif lease.started < started:
                taken_over.append(StoredLease(gpu, instance, started))
        if new:
            self._record_leases("granted", new)
        if taken_over:
            self._write(lambda: self._store.change_leases((), put=taken_over))
        self.outcomes["granted" if new else "renewed"] += 1
        self.leases.extend(gpus, instance, started, self._monotonic())
        return seconds

    def release(self, gpus: Sequence[str], instance: str, started: int) -> None:
        """Frees those seats of `gpus` that `instance` has.

        A client that has a successor of the same instance frees nothing: in a rolling restart the
        new one asks before the old one leaves.
        """
        self._take_lapsed()
        mine: list[StoredLease] = []
        for gpu in gpus:
            lease = self.leases.get(gpu)
            if lease is not None and lease.instance == instance and lease.started <= started:
                mine.append(StoredLease(gpu, instance, started))
        self._end_leases("released", mine)

    def tick(self) -> None:
        """To be called every few seconds: frees seats, and keeps the time over a restart."""
        self._take_lapsed()
        if self._clock.now() >= self._stored_latest + CLOCK_STEP_SECONDS:
            self._write(lambda: self._store.set_latest(self._clock.latest))
            self._stored_latest = self._clock.latest
        if (behind := self.seconds_behind()) >= CLOCK_BEHIND_SECONDS:
            logger.warning("the clock is %.0f s behind the time that was seen", behind)

    def seconds_behind(self) -> float:
        """How far the machine's clock is behind the latest time that was seen."""
        return self._clock.seconds_behind()

    def is_valid(self) -> bool:
        """There is a license, and it has not expired."""
        return self.license is not None and self._clock.now() < self._expires

    def _restore(self) -> None:
        for lease in self._store.leases():  # their holders may have asked while nobody was there
            self.leases.extend((lease.gpu,), lease.instance, lease.started, self._monotonic())
        stored = self._store.document()
        if stored is None:
            return
        document, self._serial = stored
        try:
            self._use(document, verify(document, self._keys))
        except LicenseError as error:  # such as: of an issuer that is not trusted any more
            logger.error("the stored license is of no use: %s", error)

    def _use(self, document: bytes, license_: License) -> None:
        self._document = document
        self._serial = license_.serial
        self.license = license_
        self._expires = license_.expires
        self._licensed = frozenset(gpu.uuid for gpu in license_.gpus)

    def _check_import(self, document: bytes) -> License:
        license_ = verify(document, self._keys)
        if license_.serial <= self._serial and document != self._document:
            raise LicenseError(
                f"the license's serial {license_.serial} is not above {self._serial}, that of the "
                "license before"
            )
        # By the machine's clock alone: the latest time may be what this license is to mend.
        if license_.expires <= self._wall():
            raise LicenseError(f"the license expired at {license_.expired_time}")
        return license_

    def _check_lease(self, gpus: Sequence[str], instance: str) -> float:
        if self.license is None:
            raise LeaseRefusedError("no_license", "no license was imported")
        seconds = self._expires - self._clock.now()
        if seconds <= 0:
            raise LeaseRefusedError(
                "expired", f"the license expired at {self.license.expired_time}"
            )
        new = 0
        for gpu in gpus:
            if gpu not in self._licensed:
                raise LeaseRefusedError("not_licensed", f"{gpu} is not among the licensed GPUs")
            lease = self.leases.get(gpu)
            if lease is None:
                new += 1
            elif lease.instance != instance:
                raise LeaseRefusedError("in_use", f"{gpu} is in use by {lease.instance}")
        limit = self.license.access_limit
        if new and limit and len(self.leases) + new > limit:
            raise LeaseRefusedError(
                "no_seat",
                f"{len(self.leases)} of {limit} seats are taken; {new} more are asked for",
            )
        return seconds

    def _take_lapsed(self) -> None:
        lapsed = self.leases.take_lapsed(self._monotonic())
        if lapsed:
            self._record_leases(
                "lapsed", [StoredLease(each.gpu, each.instance, each.started) for each in lapsed]
            )

    def _drop_unlicensed(self) -> None:
        gone = [lease for lease in self.leases if lease.gpu not in self._licensed]
        self._end_leases(
            "dropped", [StoredLease(each.gpu, each.instance, each.started) for each in gone]
        )

    def _end_leases(self, event: str, leases: Sequence[StoredLease]) -> None:
        if leases:
            self.leases.drop(lease.gpu for lease in leases)
            self._record_leases(event, leases)

    def _record_leases(self, event: str, leases: Sequence[StoredLease]) -> None:
        text = self._clock.text()
        entries = [
            AuditEntry(time=text, event=event, gpu=lease.gpu, instance=lease.instance)
            for lease in leases
        ]
        for lease in leases:
            logger.info("%s: %s for %s", event, lease.gpu, lease.instance)
        if event == "granted":
            self._write(lambda: self._store.change_leases(entries, put=leases))
        else:
            gpus = [lease.gpu for lease in leases]
            self._write(lambda: self._store.change_leases(entries, drop=gpus))

    def _note_refusal(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        minute = int(self._monotonic() // 60)
        if minute != self._minute:
            self._minute, self._refusals_of_minute = minute, 0
        self._refusals_of_minute += 1
        if self._refusals_of_minute > MAX_AUDITED_REFUSALS:
            return
        logger.warning("%s for %s: %s", event, instance, detail)
        entry = AuditEntry(
            time=self._clock.text(), event=event, gpu=gpu, instance=instance, detail=detail
        )
        self._write(lambda: self._store.change_leases([entry]))

    def _entries(self, event: str, detail: str) -> Iterable[AuditEntry]:
        logger.info("%s: %s", event, detail)
        return (AuditEntry(time=self._clock.text(), event=event, detail=detail),)

    def _write(self, change: Callable[[], None]) -> None:
        """What may be lost: seats are told again by their holders, refusals are counted too."""
        try:
            change()
        except sqlite3.Error as error:
            self.storage_errors += 1
            logger.error("cannot store: %s", error)
