"""How much callers can make a license server write down."""

from collections.abc import Callable


class MinuteLimit:
    """Lets `most` of what happens in a minute pass, and counts the rest.

    Args:
        monotonic: seconds of a clock that never goes back.
    """

    def __init__(self, most: int, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._monotonic = monotonic
        self._minute, self._count = -1, 0
        self._excess = 0  # of minutes that are over

    def passes(self) -> bool:
        """Whether what happens now is among the first of its minute."""
        self._turn()
        self._count += 1
        return self._count <= self._most

    def take_excess(self) -> int:
        """How many did not pass in minutes that are over, and were not told yet."""
        self._turn()
        excess, self._excess = self._excess, 0
        return excess

    def _turn(self) -> None:
        minute = int(self._monotonic() // 60)
        if minute != self._minute:
            self._excess += max(0, self._count - self._most)
            self._minute, self._count = minute, 0
