"""What a license server does for those who ask, and what it counts and notes of it."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from taco_license.document.keys import PublicKeys
from taco_license.document.license_file import License
from taco_license.document.view import render_view
from taco_license.errors import AwayError, LeaseRefusedError, LicenseError, NotStoredError
from taco_license.ledger.ledger import Ask, Ledger, hold, summary
from taco_license.ledger.rate_limit import MinuteLimit

logger = logging.getLogger("taco.license")

# A clock that is corrected by less is a usual thing.
CLOCK_BEHIND_SECONDS = 300.0
# Beyond these, refusals of a minute are counted and not written down: no client may fill the disk.
MAX_AUDITED_REFUSALS = 60


class LicenseService:
    """Belongs to one event loop.

    Args:
        monotonic: seconds of a clock that never goes back.

    Attributes:
        outcomes: requests for seats: `granted`, `renewed`, `unavailable` or a refusal's code.
        imports: uploads: `accepted`, `refused` or `failed`.
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
        self._refusals = MinuteLimit(MAX_AUDITED_REFUSALS, monotonic)
        self._is_behind = False

    @property
    def license(self) -> License | None:
        held = self.ledger.held
        return None if held is None else held.license

    async def import_license(self, document: bytes) -> License:
        """Puts the license of a file in the place of the one before.

        Raises:
            LicenseError: it is not good, has expired, or is no newer; all stays as it was.
            NotStoredError: it cannot be stored; all stays as it was.
            AwayError: it is not known whether it was stored.
        """
        try:
            new = hold(document, self._keys)
            await self.ledger.replace(new)
        except LicenseError as error:
            self.imports["refused"] += 1
            await self._note_refusal("import_refused", detail=str(error))
            raise
        except (NotStoredError, AwayError):
            self.imports["failed"] += 1
            raise
        self.imports["accepted"] += 1
        logger.info("imported: %s", summary(new.license))
        return new.license

    def view(self) -> str | None:
        """The license as YAML; None: there is none."""
        license_ = self.license
        return None if license_ is None else render_view(license_)

    async def lease(self, gpus: Sequence[str], instance: str, started: int) -> float:
        """Gives the seats of all `gpus` to `instance`, or lets it keep them; or of none.

        Args: see `Ask`.

        Returns:
            How many seconds the license is yet good for.

        Raises:
            LeaseRefusedError: it may not have them.
            AwayError: nobody knows.
        """
        try:
            grant = await self.ledger.take(Ask(tuple(gpus), instance, started))
        except LeaseRefusedError as refusal:
            self.outcomes[refusal.code] += 1
            detail = f"{refusal.code}: {refusal}"
            if refusal.holder is not None:
                detail += f", {refusal.holder}"
            await self._note_refusal("refused", gpu=gpus[0], instance=instance, detail=detail)
            raise
        except AwayError:
            self.outcomes["unavailable"] += 1
            raise
        self.outcomes["granted" if grant.is_new else "renewed"] += 1
        return grant.license_seconds

    async def release(self, gpus: Sequence[str], instance: str, started: int) -> None:
        """See `Ledger.release`."""
        await self.ledger.release(Ask(tuple(gpus), instance, started))

    async def tick(self) -> None:
        """To be called every `ledger.tick_seconds`."""
        await self.ledger.tick()
        behind = self.ledger.seconds_behind()
        if behind >= CLOCK_BEHIND_SECONDS and not self._is_behind:
            logger.warning("the clock is %.0f s behind the time that was seen", behind)
        self._is_behind = behind >= CLOCK_BEHIND_SECONDS

    def is_valid(self) -> bool:
        """There is a license, and it has not expired."""
        held = self.ledger.held
        return held is not None and self.ledger.now() < held.expires

    async def _note_refusal(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        if not self._refusals.passes():
            return
        logger.warning("%s for %s: %s", event, instance, detail)
        try:
            await self.ledger.note(event, gpu=gpu, instance=instance, detail=detail)
        except AwayError:  # the refusal stands without its note
            logger.error("a refusal could not be noted")
