"""Metrics of timelines with known results."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_llm.bench.metrics import Distribution, measure, peak_throughput
from taco_llm.bench.timeline import Timeline

# Four tokens: the first after 0.5 s, two at once after 0.7 s, the last after 1.1 s.
SPECULATIVE = Timeline(
    start=1.0, chunks=[1.5, 1.7, 2.1], end=2.1, prompt_tokens=10, output_tokens=4
)
# Three tokens, one a chunk, and a chunk without tokens that ends the answer.
PLAIN = Timeline(
    start=0.0, chunks=[0.2, 0.3, 0.4], end=0.5, prompt_tokens=20, output_tokens=3, text="abc"
)
SINGLE = Timeline(start=0.0, chunks=[1.0], end=1.0, prompt_tokens=5, output_tokens=1)
FAILED = Timeline(start=0.0, end=9.0, prompt_tokens=99, output_tokens=99, error="HTTP 500: no")


def test_times_of_one_request() -> None:
    assert SPECULATIVE.ttft == pytest.approx(0.5)
    assert SPECULATIVE.latency == pytest.approx(1.1)
    assert SPECULATIVE.tpot == pytest.approx(0.6 / 3)  # three tokens after the first
    assert SPECULATIVE.itls == pytest.approx([0.2, 0.4])  # by chunks, as they come


def test_a_chunk_without_tokens_ends_the_answer() -> None:
    assert PLAIN.latency == 0.5
    assert PLAIN.tpot == pytest.approx(0.15)
    assert PLAIN.itls == pytest.approx([0.1, 0.1])


def test_one_token_has_no_time_per_output_token() -> None:
    assert SINGLE.tpot is None
    assert SINGLE.itls == []
    assert measure([SINGLE], 1.0).tpot is None
    assert measure([SINGLE], 1.0).itl is None


def test_an_answer_without_tokens_has_its_end_as_first_token() -> None:
    assert Timeline(start=1.0, end=3.0).ttft == 2.0


def test_a_run() -> None:
    metrics = measure([SPECULATIVE, PLAIN, FAILED, FAILED], 4.0, retokenized_tokens=8)
    assert (metrics.completed, metrics.failed) == (2, 2)
    assert (metrics.input_tokens, metrics.output_tokens) == (30, 7)
    assert metrics.retokenized_tokens == 8
    assert metrics.request_throughput == 0.5
    assert metrics.input_throughput == 7.5
    assert metrics.output_throughput == 1.75
    assert metrics.total_throughput == 9.25
    assert metrics.tokens_per_chunk == pytest.approx(7 / 6)
    assert metrics.errors == {"HTTP 500: no": 2}
    assert metrics.request_goodput is None
    assert metrics.ttft is not None
    assert metrics.ttft.mean == pytest.approx(350)
    assert metrics.ttft.median == pytest.approx(350)
    assert metrics.ttft.std == pytest.approx(150)
    assert metrics.ttft.percentiles[99.0] == pytest.approx(497)  # 200 + 0.99 * 300
    assert metrics.itl is not None
    assert metrics.itl.mean == pytest.approx(200)  # over all four gaps, not over requests
    assert metrics.e2el is not None
    assert metrics.e2el.mean == pytest.approx(800)
    assert metrics.tpot is not None
    assert metrics.tpot.median == pytest.approx(175)


def test_goodput_counts_requests_within_every_limit() -> None:
    def goodput(*goals: tuple[str, float]) -> float | None:
        return measure([SPECULATIVE, PLAIN, SINGLE], 2.0, goals=goals).request_goodput

    assert goodput(("ttft", 500.001)) == 1.0
    assert goodput(("ttft", 500.001), ("tpot", 160)) == 0.5
    assert goodput(("tpot", 160)) == 1.0  # a single token breaks no limit
    assert goodput(("e2el", 1)) == 0.0


def test_a_run_without_success() -> None:
    metrics = measure([FAILED], 9.0)
    assert metrics.ttft is metrics.tpot is metrics.itl is metrics.e2el is None
    assert metrics.output_throughput == metrics.peak_output_throughput == 0.0


def test_peak_is_that_of_the_busiest_slice() -> None:
    burst = Timeline(chunks=[2.1, 2.2, 2.3], end=2.3, output_tokens=6)
    slow = Timeline(chunks=[0.5, 3.5], end=3.5, output_tokens=2)
    assert peak_throughput([burst, slow], 4.0) == 6.0
    assert peak_throughput([burst, slow], 0.0) == 0.0


moments = st.floats(0, 100, allow_nan=False)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    start, *chunks = sorted(draw(st.lists(moments, min_size=2, max_size=8)))
    return Timeline(
        start=start,
        chunks=chunks,
        end=chunks[-1],
        prompt_tokens=draw(st.integers(1, 50)),
        output_tokens=len(chunks) + draw(st.integers(0, 9)),
    )


@given(timelines())
def test_the_parts_of_a_request_make_its_whole(timeline: Timeline) -> None:
    assert timeline.ttft + sum(timeline.itls) == pytest.approx(timeline.latency, abs=1e-9)
    if timeline.tpot is not None:
        rest = timeline.tpot * (timeline.output_tokens - 1)
        assert timeline.ttft + rest == pytest.approx(timeline.latency, abs=1e-9)


@given(st.lists(timelines(), min_size=1, max_size=6), st.randoms())
def test_the_order_of_requests_does_not_matter(run: list[Timeline], random: Random) -> None:
    duration = max(timeline.end for timeline in run) + 1e-3
    shuffled = list(run)
    random.shuffle(shuffled)
    first, second = measure(run, duration), measure(shuffled, duration)
    assert first.output_tokens == second.output_tokens
    assert first.e2el is not None
    assert second.e2el is not None
    assert first.e2el.mean == pytest.approx(second.e2el.mean)
    assert first.e2el.percentiles == pytest.approx(second.e2el.percentiles)


@given(st.lists(timelines(), min_size=1, max_size=6))
def test_the_peak_is_between_the_mean_and_all_at_once(run: list[Timeline]) -> None:
    duration = max(timeline.end for timeline in run) + 1e-3
    metrics = measure(run, duration)
    all_at_once = metrics.output_tokens * math.ceil(duration) / duration
    assert metrics.output_throughput <= metrics.peak_output_throughput * (1 + 1e-9)
    assert metrics.peak_output_throughput <= all_at_once * (1 + 1e-9)


@given(st.lists(st.floats(0, 1e3), min_size=1), st.floats(0.1, 99.9))
def test_percentiles_lie_among_the_values(seconds: list[float], percent: float) -> None:
    times = Distribution.of(seconds, [percent])
    assert times is not None
    low, high = 1e3 * min(seconds), 1e3 * max(seconds)
    for value in (times.mean, times.median, times.percentiles[percent]):
        assert low - 1e-6 <= value <= high + 1e-6
