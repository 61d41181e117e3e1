"""TACO's goals against other engines on one machine, and whether a measurement reaches them.

A goal is *met* if the ratio reaches it and the worse end of the interval is within 10% of it. It
is *missed* if no part of the interval reaches it. Otherwise it is *undecided*: the interval is
too wide, and more pairs or a quieter machine are needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.interval import Interval

HIGHER_IS_BETTER = frozenset({"tokens_per_s"})
MET, UNDECIDED, MISSED = "met", "undecided", "missed"
TOLERANCE = 0.1  # fraction of the goal: allowed distance of the interval's worse end


def outcome_of(value: float, low: float, high: float, limit: float, *, at_least: bool) -> str:
    """Returns MET, UNDECIDED or MISSED for a value with the interval `low` to `high`."""
    if at_least:  # inverted, so that lower is better below
        value, low, high, limit = -value, -high, -low, -limit
    if value <= limit and high <= limit + TOLERANCE * abs(limit):
        return MET
    return UNDECIDED if low <= limit else MISSED


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit of a ratio ours / theirs.

    Attributes:
        ours: our engine.
        workload, figure: the compared quantity.
        limit: the ratio to reach: at most, or at least if higher is better.
        against: the engine to compare with; None: the best peer.
    """

    ours: str
    workload: str
    figure: str
    limit: float
    against: str | None = None

    def outcome(self, interval: Interval) -> str:
        """MET, UNDECIDED or MISSED."""
        at_least = self.figure in HIGHER_IS_BETTER
        return outcome_of(
            interval.ratio, interval.low, interval.high, self.limit, at_least=at_least
        )

    def __str__(self) -> str:
        return f"{'≥' if self.figure in HIGHER_IS_BETTER else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Limit:
    """An absolute limit of one of our engines, independent of other engines."""

    most: float
    unit: str

    def outcome(self, values: Sequence[float]) -> str:
        """MET, UNDECIDED or MISSED, from the lowest and the highest of the measured values."""
        return outcome_of(median(values), min(values), max(values), self.most, at_least=False)

    def __str__(self) -> str:
        return f"≤ {self.most:g} {self.unit}"


GOALS = (
    Goal("taco", "single", "tpot_ms", 0.85),
    Goal("taco-int8", "single", "tpot_ms", 0.7),
    Goal("taco", "single", "ttft_ms", 0.55),
    Goal("taco", "long", "ttft_ms", 0.45),
    Goal("taco-int8", "long", "ttft_ms", 0.35),
    Goal("taco", "batch", "tokens_per_s", 1.65),
    Goal("taco-int8", "batch", "tokens_per_s", 2.7),
    Goal("taco", "mixed", "tokens_per_s", 1.6),
    Goal("taco-int8", "mixed", "tokens_per_s", 2.4),
    Goal("taco", "prefix", "seconds", 0.6),
    Goal("taco-int8", "prefix", "seconds", 0.4),
    Goal("taco", "json", "tokens_per_s", 1.5),
    Goal("taco", "json-single", "tpot_ms", 0.67),
    Goal("taco-http", "batch", "tokens_per_s", 0.92, against="taco"),
    Goal("taco-http", "mixed", "tokens_per_s", 0.92, against="taco"),
)
# Shapes with their own goals.
SHAPE_GOALS = {
    "olmoe-4-layers": (
        Goal("taco", "single", "tpot_ms", 0.85),
        Goal("taco", "long", "ttft_ms", 0.77),
        Goal("taco", "batch", "tokens_per_s", 1.3),
    ),
}
LIMITS = {
    ("taco", "start"): Limit(1.6, "s"),
    ("taco-http", "start"): Limit(1.6, "s"),
    ("taco", "memory"): Limit(400.0, "MB"),
}


def find_goal(model: str, ours: str, workload: str, figure: str) -> Goal | None:
    """`model`: the checkpoint's shape."""
    for goal in SHAPE_GOALS.get(model, GOALS):
        if (goal.ours, goal.workload, goal.figure) == (ours, workload, figure):
            return goal
    return None


def best(figure: str, medians: Mapping[str, float], names: Iterable[str]) -> str | None:
    """Returns the engine with the best median of `figure`; None if no engine has one."""
    measured = [name for name in names if name in medians]
    choose = max if figure in HIGHER_IS_BETTER else min
    return choose(measured, key=medians.__getitem__) if measured else None
