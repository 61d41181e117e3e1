"""The clock by which licenses expire. It never goes back, even if the machine's clock does."""

from collections.abc import Callable
from datetime import UTC, datetime


class LicenseClock:
    """The machine's clock, but never earlier than the latest time seen.

    Args:
        wall: seconds since the epoch.
        latest: the latest time that was stored.

    Attributes:
        latest: the latest time seen, in seconds since the epoch. The ledger stores it regularly.
    """

    def __init__(self, wall: Callable[[], float], latest: float) -> None:
        self._wall = wall
        self.latest = latest

    def now(self) -> float:
        """Seconds since the epoch."""
        self.latest = max(self.latest, self._wall())
        return self.latest

    def text(self) -> str:
        """The current time in RFC 3339, in UTC."""
        return datetime.fromtimestamp(self.now(), UTC).isoformat(timespec="milliseconds")

    def lag_seconds(self) -> float:
        """Seconds by which the machine's clock is behind the latest time seen."""
        return max(0.0, self.latest - self._wall())
