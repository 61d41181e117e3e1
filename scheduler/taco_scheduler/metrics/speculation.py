"""What became of drafts, in Prometheus' exposition format."""

from collections.abc import Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from taco_scheduler.state.speculation_counters import SpeculationCounters

_FIGURES = {
    "num_iters": "Decode steps of a sequence, on average.",
    "hit_iters": "Those in which a draft was accepted.",
    "hit_len": "Accepted drafts of a sequence, on average.",
    "invalid_len": "Rejected drafts of a sequence, on average.",
    "hit_rate": "Share of decode steps in which a draft was accepted.",
    "global_average_hit_len": "Accepted drafts a decode step.",
    "valid_average_hit_len": "Accepted drafts a decode step in which any was.",
    "hit_valid_rate": "Share of the drafts that were accepted.",
}


def speculation_metrics(counters: SpeculationCounters, model: str) -> Iterator[Metric]:
    """The counters that dashboards know from vLLM, how many drafts were chosen to be verified, and
    the lookahead cache's own figures.
    """
    totals = {
        "drafts": ("Decode steps of sequences that verified drafts.", counters.num_drafted),
        "draft_tokens": ("Drafts that were verified.", counters.draft_tokens),
        "accepted_tokens": ("Drafts that were accepted.", counters.accepted_tokens),
    }
    for name, (text, total) in totals.items():
        family = CounterMetricFamily(f"vllm:spec_decode_num_{name}", text, labels=["model_name"])
        family.add_metric([model], total)
        yield family
    accepted = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted drafts by depth.",
        labels=["model_name", "position"],
    )
    for depth, count in enumerate(counters.accepted_at.tolist()):
        accepted.add_metric([model, str(depth)], count)
    yield accepted
    lengths = HistogramMetricFamily(
        "taco:spec_draft_length",
        "Drafts that the controller chose to verify, of a sequence in a step.",
        labels=["model_name"],
    )
    lengths.add_metric([model], counters.draft_lengths.buckets(), counters.draft_lengths.sum)
    yield lengths
    for name, value in counters.figures().items():
        figure = GaugeMetricFamily(f"taco:lookahead_{name}", _FIGURES[name], labels=["model_name"])
        figure.add_metric([model], value)
        yield figure
