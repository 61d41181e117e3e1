"""Computes the metrics of a run (throughput, TTFT, TPOT, ITL, goodput) from request timelines.

The definitions match vLLM's benchmark, so that figures are comparable; see docs/benchmarking.md.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taco_llm.bench.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, median, standard deviation and percentiles of one latency, in milliseconds."""

    mean: float
    median: float
    std: float
    percentiles: Mapping[float, float]

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Iterable[float]) -> "Distribution | None":
        """The distribution of the values, with interpolated percentiles; None without values."""
        if not seconds:
            return None
        values = 1e3 * np.asarray(seconds)
        return cls(
            mean=float(values.mean()),
            median=float(np.median(values)),
            std=float(values.std()),
            percentiles={p: float(np.percentile(values, p)) for p in percentiles},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics:
    """The metrics of one run. Token counts and latencies include successful requests only.

    Attributes:
        duration: seconds from the first request to the end of the last answer.
        retokenized_tokens: tokens of the answers, counted by the client's tokenizer; None without
            one.
        peak_output_throughput: tokens per second in the busiest slice of at most one second.
        request_goodput: requests per second within the latency limits; None without limits.
        tokens_per_chunk: output tokens divided by the chunks that carried them.
        ttft, tpot, itl, e2el: None if no request has such a time.
        errors: number of occurrences by error.
    """

    completed: int
    failed: int
    duration: float
    input_tokens: int
    output_tokens: int
    retokenized_tokens: int | None
    peak_output_throughput: float
    request_goodput: float | None
    tokens_per_chunk: float
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None
    errors: Mapping[str, int]

    @property
    def request_throughput(self) -> float:
        return self._per_second(self.completed)

    @property
    def input_throughput(self) -> float:
        return self._per_second(self.input_tokens)

    @property
    def output_throughput(self) -> float:
        return self._per_second(self.output_tokens)

    @property
    def total_throughput(self) -> float:
        return self._per_second(self.input_tokens + self.output_tokens)

    def _per_second(self, count: int) -> float:
        return count / self.duration if self.duration > 0 else 0.0


def measure(
    timelines: Sequence[Timeline],
    duration: float,
    *,
    percentiles: Sequence[float] = (99.0,),
    goals: Iterable[tuple[str, float]] = (),
    retokenized_tokens: int | None = None,
) -> ServingMetrics:
    """Computes the metrics of a run of `duration` seconds.

    Args:
        goals: latency limits for goodput in milliseconds: "ttft", "tpot" or "e2el".
    """
    good = [timeline for timeline in timelines if timeline.error is None]
    errors: dict[str, int] = {}
    for timeline in timelines:
        if timeline.error is not None:
            errors[timeline.error] = errors.get(timeline.error, 0) + 1
    output_tokens = sum(timeline.output_tokens for timeline in good)
    num_chunks = sum(len(timeline.chunks) for timeline in good)
    limits = tuple(goals)
    kept = sum(_keeps(timeline, limits) for timeline in good)
    tpots = [tpot for timeline in good if (tpot := timeline.tpot) is not None]
    return ServingMetrics(
        completed=len(good),
        failed=len(timelines) - len(good),
        duration=duration,
        input_tokens=sum(timeline.prompt_tokens for timeline in good),
        output_tokens=output_tokens,
        retokenized_tokens=retokenized_tokens,
        peak_output_throughput=peak_throughput(good, duration),
        request_goodput=kept / duration if limits and duration > 0 else None,
        tokens_per_chunk=output_tokens / num_chunks if num_chunks else 0.0,
        ttft=Distribution.of([timeline.ttft for timeline in good], percentiles),
        tpot=Distribution.of(tpots, percentiles),
        itl=Distribution.of([itl for timeline in good for itl in timeline.itls], percentiles),
        e2el=Distribution.of([timeline.latency for timeline in good], percentiles),
        errors=errors,
    )


def peak_throughput(timelines: Iterable[Timeline], duration: float) -> float:
    """Output tokens per second in the busiest of equal time slices of at most one second.

    A request's tokens are spread evenly over its chunks, since a chunk does not contain its number
    of tokens.
    """
    if duration <= 0:
        return 0.0
    num_slices = math.ceil(duration)
    slices = np.zeros(num_slices)
    for timeline in timelines:
        times = timeline.chunks or [timeline.end]
        where = (np.asarray(times) * (num_slices / duration)).astype(int)
        weight = timeline.output_tokens / len(times)
        np.add.at(slices, where.clip(0, num_slices - 1), weight)
    return float(slices.max() * num_slices / duration)


def _keeps(timeline: Timeline, limits: Iterable[tuple[str, float]]) -> bool:
    """Whether all times are within their limits. A request without a second token has TPOT 0."""
    times = {"ttft": timeline.ttft, "tpot": timeline.tpot or 0.0, "e2el": timeline.latency}
    return all(1e3 * times[metric] <= limit for metric, limit in limits)
