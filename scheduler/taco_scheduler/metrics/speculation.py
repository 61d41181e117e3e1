"""Metrics of draft tokens, in the Prometheus exposition format."""

from collections.abc import Iterator

from prometheus_client import Metric

from taco_common.metrics import Families
from taco_scheduler.state.speculation_counters import SpeculationCounters

_FIGURES = {
    "num_iters": "Average decode steps of a sequence.",
    "hit_iters": "Average decode steps of a sequence in which a draft was accepted.",
    "hit_len": "Average accepted draft tokens of a sequence.",
    "invalid_len": "Average rejected draft tokens of a sequence.",
    "hit_rate": "Share of decode steps in which a draft was accepted, 0 to 1.",
    "global_average_hit_len": "Accepted draft tokens a decode step.",
    "valid_average_hit_len": "Accepted draft tokens a decode step in which one was accepted.",
    "hit_valid_rate": "Accepted share of draft tokens, 0 to 1.",
}


def speculation_metrics(counters: SpeculationCounters, make: Families) -> Iterator[Metric]:
    """vLLM's counters of draft tokens, the chosen draft lengths, and the lookahead figures."""
    totals = {
        "drafts": ("Decode steps in which a sequence verified drafts.", counters.num_drafted),
        "draft_tokens": ("Verified draft tokens.", counters.draft_tokens),
        "accepted_tokens": ("Accepted draft tokens.", counters.accepted_tokens),
    }
    for name, (text, total) in totals.items():
        yield make.counter(f"vllm:spec_decode_num_{name}", text, total)
    yield make.counters(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by position in the draft.",
        "position",
        {str(depth): count for depth, count in enumerate(counters.accepted_at.tolist())},
    )
    yield make.histogram(
        "taco:spec_draft_length",
        "Draft tokens that a sequence verified in a step.",
        counters.draft_lengths,
    )
    for name, value in counters.figures().items():
        yield make.gauge(f"taco:lookahead_{name}", _FIGURES[name], value)
