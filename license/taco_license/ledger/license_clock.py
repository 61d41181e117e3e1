"""The time by which licenses expire: it does not go back when the machine's clock does."""

from collections.abc import Callable
from datetime import UTC, datetime


class LicenseClock:
    """The machine's clock, but never earlier than the latest time that was seen.

    Attributes:
        latest: that time, in seconds since the epoch. The server stores it now and then.
    """

    def __init__(self, wall: Callable[[], float], latest: float) -> None:
        self._wall = wall
        self.latest = latest

    def now(self) -> float:
        """Seconds since the epoch."""
        self.latest = max(self.latest, self._wall())
        return self.latest

    def text(self) -> str:
        """Now, as RFC 3339 in UTC."""
        return datetime.fromtimestamp(self.now(), UTC).isoformat(timespec="milliseconds")

    def seconds_behind(self) -> float:
        """How far the machine's clock is behind the latest time."""
        return max(0.0, self.latest - self._wall())
