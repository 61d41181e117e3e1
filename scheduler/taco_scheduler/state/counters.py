"""The engine's counters and histograms, which metrics expose."""

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
    """Totals since the start of the scheduler.

    Attributes:
        num_lost_workers: workers that crashed or stalled; drained workers do not count.
        num_late_drafts: draft requests that a step did not wait for.
        num_invalid_drafts: drafts and replies that were dropped as invalid.
        prompt_tokens: tokens of prompts when first admitted, computed or cached.
        prefix_cache_queries: tokens looked up in the prefix cache, at each admission.
        prefix_cache_hits: those of them that were found.
        num_pins: pinned prefixes.
        num_rejected_pins: prefixes that could not be pinned.
        row_errors: sequences that failed in a step that succeeded for the others, by error code.
        rejections: rejected requests by reason.
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
