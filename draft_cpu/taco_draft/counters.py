"""Counters of a draft worker's requests, for its metrics."""

from dataclasses import dataclass, field

from taco_common.histogram import Histogram

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


@dataclass(slots=True)
class DraftCounters:
    """Counters and the latency histogram of draft requests.

    Attributes:
        num_failed: requests that failed.
        num_drafts: drafted tokens.
        seconds: duration of requests that succeeded.
    """

    num_failed: int = 0
    num_drafts: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
