"""What the engine counts for dashboards: plain numbers, cheap to keep up in every step."""

from collections import Counter
from dataclasses import dataclass, field

from taco_common.histogram import Histogram
from taco_proto.steps import RowErrorCode
from taco_scheduler.admission.rejections import RejectionReason
from taco_scheduler.state.speculation_counters import SpeculationCounters

SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    60.0, 120.0, 240.0, 480.0,
)  # fmt: skip
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def _seconds() -> Histogram:
    return Histogram(SECONDS)


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prompt tokens count when they are computed or found in the cache.

    `prefix_cache_queries` are the tokens of sequences that were looked up in the prefix cache, each
    time they were admitted; `prefix_cache_hits` those of them that were found. `num_pins` of their
    beginnings were kept as asked for, or for longer; `num_rejected_pins` were not. Workers that
    leave are not among `num_lost_workers`. `row_errors` are sequences that failed in a step which
    succeeded for the others.
    """

    num_steps: int = 0
    num_preemptions: int = 0
    num_failed_steps: int = 0
    num_lost_workers: int = 0
    num_late_drafts: int = 0
    num_invalid_drafts: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_pins: int = 0
    num_rejected_pins: int = 0
    row_errors: Counter[RowErrorCode] = field(default_factory=Counter)
    rejections: Counter[RejectionReason] = field(default_factory=Counter)
    speculation: SpeculationCounters = field(default_factory=SpeculationCounters)
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    queue_seconds: Histogram = field(default_factory=_seconds)
    prefill_seconds: Histogram = field(default_factory=_seconds)
    decode_seconds: Histogram = field(default_factory=_seconds)
    inference_seconds: Histogram = field(default_factory=_seconds)
