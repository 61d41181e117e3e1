"""What a draft worker's requests come to."""

from dataclasses import dataclass, field

from taco_common.histogram import Histogram

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)


@dataclass(slots=True)
class DraftMeter:
    """Counts for dashboards.

    Attributes:
        num_failed: requests that failed.
        num_drafts: tokens that were drafted.
        seconds: time of a request that did not fail.
    """

    num_failed: int = 0
    num_drafts: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
