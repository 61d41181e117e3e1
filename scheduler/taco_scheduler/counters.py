"""What the engine counts for dashboards: plain numbers, cheap to keep up in every step."""

from bisect import bisect_left
from dataclasses import dataclass, field

SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    60.0, 120.0, 240.0, 480.0,
)  # fmt: skip
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values by upper bound; the last count is that of values above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def _seconds() -> Histogram:
    return Histogram(SECONDS)


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prompt tokens count when they are computed or found in the cache.

    `prefix_cache_queries` are the tokens of sequences that were looked up in the prefix cache, each
    time they were admitted; `prefix_cache_hits` those of them that were found.
    """

    num_steps: int = 0
    num_preemptions: int = 0
    num_failed_steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    queue_seconds: Histogram = field(default_factory=_seconds)
    prefill_seconds: Histogram = field(default_factory=_seconds)
    decode_seconds: Histogram = field(default_factory=_seconds)
    inference_seconds: Histogram = field(default_factory=_seconds)
