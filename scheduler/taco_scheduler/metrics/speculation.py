"""Metrics of draft tokens, in the Prometheus exposition format."""

from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

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


def speculation_metrics(counters: SpeculationCounters, model: str) -> Iterator[Metric]:
    """vLLM's counters of draft tokens, the chosen draft lengths, and the lookahead figures."""
    totals = {
        "drafts": ("Decode steps in which a sequence verified drafts.", counters.num_drafted),
        "draft_tokens": ("Verified draft tokens.", counters.draft_tokens),
        "accepted_tokens": ("Accepted draft tokens.", counters.accepted_tokens),
    }
    for name, (text, total) in totals.items():
        family = CounterMetricFamily(f"vllm:spec_decode_num_{name}", text, labels=["model_name"])
        family.add_metric([model], total)
        yield family
    accepted = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens by position in the draft.",
        labels=["model_name", "position"],
    )
    for depth, count in enumerate(counters.accepted_at.tolist()):
        accepted.add_metric([model, str(depth)], count)
    yield accepted
    lengths = HistogramMetricFamily(
        "taco:spec_draft_length",
        "Draft tokens that a sequence verified in a step.",
        labels=["model_name"],
    )
    lengths.add_metric([model], counters.draft_lengths.buckets(), counters.draft_lengths.sum)
    yield lengths
    for name, value in counters.figures().items():
        figure = GaugeMetricFamily(f"taco:lookahead_{name}", _FIGURES[name], labels=["model_name"])
        figure.add_metric([model], value)
        yield figure
