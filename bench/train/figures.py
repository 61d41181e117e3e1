"""Names of the configurations, and what is computed of their figures; imports no torch."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.interval import ratio_interval

OFF, DDP, POWER_SGD = "communication off", "gloo DDP", "PowerSGD rank 4"
TWO_LEVEL, FLOAT16, TOP_K, AUTO = "2D", "2D + fp16", "2D + TopK", "auto"
ARMS = (OFF, DDP, TWO_LEVEL, FLOAT16, TOP_K, AUTO, POWER_SGD)
ONE_RANK = "one rank"
COLUMNS = ("configuration", "per CPU", "±", "total", "of off", "of DDP", "of linear")


def rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields one row a configuration of the synthetic benchmark: see `COLUMNS`.

    `of off` and `of DDP` are ratios of adjacent iterations with their 95% confidence interval.
    """
    speeds = figures["speeds"]
    alone = statistics.fmean(speeds[ONE_RANK])
    for arm, values in speeds.items():
        size = 1 if arm == ONE_RANK else figures["ranks"]
        mean, spread = summary(values)
        shares = [
            "–" if arm in (ONE_RANK, other) else interval(values, speeds[other])
            for other in (OFF, DDP)
        ]
        cells = (f"{mean:.2f}", f"{spread:.2f}", f"{size * mean:.2f}", *shares)
        yield (arm, *cells, f"{mean / alone:.2f}")


def summary(values: Sequence[float]) -> tuple[float, float]:
    """Returns mean and 1.96 standard deviations, as Horovod's benchmark prints them."""
    return statistics.fmean(values), 1.96 * statistics.pstdev(values)


def interval(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Formats the ratio of pairs; a single pair has no interval."""
    if len(ours) < 2:
        return f"{ours[0] / theirs[0]:.2f}"
    found = ratio_interval(ours, theirs)
    return f"{found.ratio:.2f} ({found.low:.2f}–{found.high:.2f})"


def seconds_to(loss: float, curve: Sequence[Sequence[float]]) -> float | None:
    """When a curve of (seconds, loss) first reaches a loss, between its points by a straight line;
    None if it does not.
    """
    before: Sequence[float] | None = None
    for seconds, found in curve:
        if found <= loss:
            if before is None or before[1] == found:
                return seconds
            share = (before[1] - loss) / (before[1] - found)
            return before[0] + share * (seconds - before[0])
        before = (seconds, found)
    return None
