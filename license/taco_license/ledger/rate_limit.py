"""A rate limit per minute. It bounds what clients can make a license server log."""

from collections.abc import Callable


class RateLimit:
    """Allows `per_minute` events in each minute and counts the rest.

    Args:
        monotonic: seconds of a clock that never goes back.
    """

    def __init__(self, per_minute: int, monotonic: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._minute, self._count = -1, 0
        self._excess = 0  # events over the limit in past minutes

    def allows(self) -> bool:
        """Counts an event; returns whether the limit of this minute allows it."""
        self._start_minute()
        self._count += 1
        return self._count <= self._per_minute

    def pop_excess(self) -> int:
        """The number of events over the limit in past minutes since the last call."""
        self._start_minute()
        excess, self._excess = self._excess, 0
        return excess

    def _start_minute(self) -> None:
        minute = int(self._monotonic() // 60)
        if minute != self._minute:
            self._excess += max(0, self._count - self._per_minute)
            self._minute, self._count = minute, 0
