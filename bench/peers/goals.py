"""What TACO has set itself to reach against other engines on one machine.

A goal is met when the interval reaches it. Few or noisy pairs make a wide interval, which reaches
nearly anything: where only the interval reaches a goal and the ratio itself does not, that is said.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from peers.interval import Interval

HIGHER_IS_BETTER = frozenset({"tokens_per_s"})
MET, WITHIN_INTERVAL, MISSED = "met", "met within the interval", "missed"


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit of a ratio ours / theirs.

    Attributes:
        ours: the engine that it is for.
        workload, figure: what is compared.
        limit: the ratio to reach: at most, or at least where higher is better.
        against: the engine to compare with; None: the best peer.
    """

    ours: str
    workload: str
    figure: str
    limit: float
    against: str | None = None

    def outcome(self, interval: Interval) -> str:
        """MET, WITHIN_INTERVAL or MISSED."""
        if self._reaches(interval.ratio):
            return MET
        best_end = interval.high if self.figure in HIGHER_IS_BETTER else interval.low
        return WITHIN_INTERVAL if self._reaches(best_end) else MISSED

    def _reaches(self, ratio: float) -> bool:
        return ratio >= self.limit if self.figure in HIGHER_IS_BETTER else ratio <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.figure in HIGHER_IS_BETTER else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one of our engines may take, whatever others do."""

    most: float
    unit: str

    def outcome(self, median: float) -> str:
        """MET or MISSED."""
        return MET if median <= self.most else MISSED

    def __str__(self) -> str:
        return f"≤ {self.most:g} {self.unit}"


GOALS = (
    Goal("taco", "single", "tpot_ms", 0.85),
    Goal("taco-int8", "single", "tpot_ms", 0.75),
    Goal("taco", "single", "ttft_ms", 0.55),
    Goal("taco", "long", "ttft_ms", 0.45),
    Goal("taco", "batch", "tokens_per_s", 1.6),
    Goal("taco-int8", "batch", "tokens_per_s", 2.2),
    Goal("taco", "mixed", "tokens_per_s", 1.6),
    Goal("taco", "prefix", "seconds", 0.7),
    Goal("taco-http", "batch", "tokens_per_s", 0.92, against="taco"),
    Goal("taco-http", "mixed", "tokens_per_s", 0.92, against="taco"),
)
LIMITS = {
    ("taco", "start"): Limit(4.0, "s"),
    ("taco-http", "start"): Limit(4.0, "s"),
    ("taco", "memory"): Limit(400.0, "MB"),
}


def find_goal(ours: str, workload: str, figure: str) -> Goal | None:
    for goal in GOALS:
        if (goal.ours, goal.workload, goal.figure) == (ours, workload, figure):
            return goal
    return None


def best(figure: str, medians: dict[str, float], names: Iterable[str]) -> str | None:
    """The engine of `names` with the best median of `figure`; None if none of them has one."""
    measured = [name for name in names if name in medians]
    choose = max if figure in HIGHER_IS_BETTER else min
    return choose(measured, key=medians.__getitem__) if measured else None
