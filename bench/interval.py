"""Confidence interval of the ratio of two engines, measured in alternating pairs.

A machine's speed drifts: two runs within a minute agree better than two runs hours apart. So the
runs of a pair are adjacent, and only their ratio is used. The logarithms of the ratios are assumed
to be normal. The interval is Student's t interval of their mean; the ratio is the geometric mean.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95% confidence interval around `ratio`."""

    ratio: float
    low: float
    high: float


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Computes the ratio ours / theirs over pairs, with its 95% confidence interval.

    Args:
        ours, theirs: positive figures of equal number; those at the same index are a pair.

    Raises:
        ValueError: fewer than two pairs, or unequal lengths.
    """
    logs = [math.log(our / their) for our, their in zip(ours, theirs, strict=True)]
    if len(logs) < 2:
        raise ValueError("an interval needs at least two pairs")
    middle = statistics.fmean(logs)
    half = t_975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def t_975(degrees: int) -> float:
    """Returns the 97.5th percentile of Student's t distribution."""
    low, high = 1.9, 13.0  # 1.960 for infinitely many degrees of freedom, 12.706 for one
    while high - low > 1e-6:
        middle = (low + high) / 2
        if _t_share(middle, degrees) < 0.475:
            low = middle
        else:
            high = middle
    return low


def _t_share(limit: float, degrees: int) -> float:
    """Integrates Student's t density from 0 to `limit` with Simpson's rule."""
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    scale = math.exp(log_scale) / math.sqrt(degrees * math.pi)
    num_steps = 1000
    width = limit / num_steps
    total = 0.0
    for step in range(num_steps + 1):
        weight = 1 if step in (0, num_steps) else 4 if step % 2 else 2
        total += weight * (1 + (step * width) ** 2 / degrees) ** (-(degrees + 1) / 2)
    return scale * total * width / 3
