"""The license service: imports licenses, leases seats, counts outcomes, writes the audit log."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from taco_license.document.keys import PublicKeys
from taco_license.document.license_file import License
from taco_license.document.view import render_view
from taco_license.errors import (
    LeaseRejectedError,
    LedgerUnavailableError,
    LicenseError,
    NotStoredError,
)
from taco_license.ledger.ledger import Ledger, SeatRequest, summary, verify_document
from taco_license.ledger.rate_limit import RateLimit

logger = logging.getLogger("taco.license")

# The service warns if the clock was set back by more than this; smaller corrections are normal.
CLOCK_BEHIND_SECONDS = 300.0
# Rate limit of logged rejections per minute, so that no client can fill the disk.
MAX_AUDITED_REJECTIONS = 60


class LicenseService:
    """The operations behind the HTTP routes. A service belongs to one event loop.

    Args:
        monotonic: seconds of a clock that never goes back.

    Attributes:
        outcomes: number of seat requests by outcome: `granted`, `renewed`, `unavailable`, or the
            code of a rejection.
        imports: number of uploads by outcome: `accepted`, `refused` or `failed`.
    """

    def __init__(
        self,
        ledger: Ledger,
        keys: PublicKeys,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger = ledger
        self.outcomes: Counter[str] = Counter()
        self.imports: Counter[str] = Counter()
        self._keys = keys
        self._rejection_log_limit = RateLimit(MAX_AUDITED_REJECTIONS, monotonic)
        self._is_behind = False

    @property
    def license(self) -> License | None:
        current = self.ledger.current
        return None if current is None else current.license

    async def import_license(self, document: bytes) -> License:
        """Replaces the current license.

        Raises:
            LicenseError: the license is invalid, expired, or not newer; nothing has changed.
            NotStoredError: the license cannot be stored; nothing has changed.
            LedgerUnavailableError: it is unknown whether the license was stored.
        """
        try:
            new = verify_document(document, self._keys)
            await self.ledger.replace(new)
        except LicenseError as error:
            self.imports["refused"] += 1
            await self._record_rejection("import_refused", detail=str(error))
            raise
        except (NotStoredError, LedgerUnavailableError):
            self.imports["failed"] += 1
            raise
        self.imports["accepted"] += 1
        logger.info("imported: %s", summary(new.license))
        return new.license

    def view(self) -> str | None:
        """The current license as YAML; None without a license."""
        license_ = self.license
        return None if license_ is None else render_view(license_)

    async def lease(self, gpus: Sequence[str], instance: str, started: int) -> float:
        """Grants or renews the seats of all `gpus`, or of none.

        Args: see `SeatRequest`.

        Returns:
            Seconds until the license expires.

        Raises:
            LeaseRejectedError: the instance may not have the seats.
            LedgerUnavailableError: the ledger does not answer.
        """
        try:
            grant = await self.ledger.take(SeatRequest(tuple(gpus), instance, started))
        except LeaseRejectedError as rejection:
            self.outcomes[rejection.code] += 1
            detail = f"{rejection.code}: {rejection}"
            if rejection.holder is not None:
                detail += f", {rejection.holder}"
            await self._record_rejection("refused", gpu=gpus[0], instance=instance, detail=detail)
            raise
        except LedgerUnavailableError:
            self.outcomes["unavailable"] += 1
            raise
        self.outcomes["granted" if grant.is_new else "renewed"] += 1
        return grant.license_seconds

    async def release(self, gpus: Sequence[str], instance: str, started: int) -> None:
        """See `Ledger.release`."""
        await self.ledger.release(SeatRequest(tuple(gpus), instance, started))

    async def tick(self) -> None:
        """Periodic work. The server calls it every `ledger.tick_seconds`."""
        await self.ledger.tick()
        behind = self.ledger.clock_lag_seconds()
        if behind >= CLOCK_BEHIND_SECONDS and not self._is_behind:
            logger.warning("the clock is %.0f s behind the latest time seen: check it", behind)
        self._is_behind = behind >= CLOCK_BEHIND_SECONDS

    def is_valid(self) -> bool:
        """Whether there is a license that has not expired."""
        current = self.ledger.current
        return current is not None and self.ledger.now() < current.expires

    async def _record_rejection(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        if not self._rejection_log_limit.allows():
            return
        logger.warning("%s for %s: %s", event, instance, detail)
        try:
            await self.ledger.record_event(event, gpu=gpu, instance=instance, detail=detail)
        except LedgerUnavailableError:  # the request stays rejected
            logger.error("cannot write a rejection to the audit log: the ledger does not answer")
