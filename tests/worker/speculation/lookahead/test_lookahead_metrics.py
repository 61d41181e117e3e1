from __future__ import annotations

import logging
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_worker.speculation.lookahead.lookahead_metrics import LookaheadMetrics

NUM_SLOTS = 3
LINE = re.compile(
    r"num_iters: \d+\.\d{4}, hit_iters:\d+\.\d{4}, hit_len: \d+\.\d{4}, invalid_len: \d+\.\d{4}, "
    r"hit_rate: \d\.\d{4}, global_average_hit_len: \d+\.\d{4}, "
    r"valid_average_hit_len: \d+\.\d{4}, hit_valid_rate: \d\.\d{4}"
)

# One iteration of a slot: verified and accepted drafts.
verdicts = st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
iterations = st.dictionaries(st.integers(0, NUM_SLOTS - 1), verdicts, max_size=NUM_SLOTS)
leavings = st.sets(st.integers(0, NUM_SLOTS - 1))


def expected(requests: list[list[tuple[int, int]]]) -> list[float]:
    """The metrics by their definitions, request by request."""
    rows = []
    for request in requests:
        num_iters, hit_iters = len(request), sum(accepted > 0 for _, accepted in request)
        hit_len, drafted = sum(a for _, a in request), sum(d for d, _ in request)
        rows.append(
            [
                num_iters,
                hit_iters,
                hit_len,
                drafted - hit_len,
                hit_iters / num_iters,
                hit_len / num_iters,
                hit_len / hit_iters if hit_iters else 0.0,
                hit_len / drafted if drafted else 0.0,
            ]
        )
    return np.mean(rows, axis=0).tolist() if rows else [0.0] * 8


@given(st.lists(iterations | leavings, max_size=30))
def test_metrics_are_means_over_requests(
    events: list[dict[int, tuple[int, int]] | set[int]],
) -> None:
    figures = LookaheadMetrics(NUM_SLOTS)
    running: dict[int, list[tuple[int, int]]] = {}
    left: list[list[tuple[int, int]]] = []
    for event in events:
        slots = np.array(sorted(event), dtype=np.int32)
        if isinstance(event, set):
            figures.leave(slots)
            left += [running.pop(slot) for slot in event if slot in running]
            continue
        for slot, verdict in event.items():
            running.setdefault(slot, []).append(verdict)
        columns = np.array([event[slot] for slot in slots.tolist()], np.int32).reshape(-1, 2)
        figures.observe(slots, columns[:, 0], columns[:, 1])
    found = list(figures.values().values())
    assert found == pytest.approx(expected([*left, *running.values()]))
    figures.clear()
    assert list(figures.values().values()) == pytest.approx(found)


def test_the_log_line_is_the_documented_one() -> None:
    figures = LookaheadMetrics(NUM_SLOTS)
    assert LINE.fullmatch(figures.line())
    slots = np.array([0, 1], np.int32)
    figures.observe(slots, np.array([7, 4], np.int32), np.array([3, 0], np.int32))
    assert figures.line() == (
        "num_iters: 1.0000, hit_iters:0.5000, hit_len: 1.5000, invalid_len: 4.0000, "
        "hit_rate: 0.5000, global_average_hit_len: 1.5000, valid_average_hit_len: 1.5000, "
        "hit_valid_rate: 0.2143"
    )


def test_metrics_are_logged_every_log_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taco.worker")
    slots, ones = np.array([0], np.int32), np.array([1], np.int32)
    quiet, loud = LookaheadMetrics(NUM_SLOTS), LookaheadMetrics(NUM_SLOTS, log_interval=3)
    for _ in range(7):
        quiet.observe(slots, ones, ones)
        loud.observe(slots, ones, ones)
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "num_iters: 3.0000",
        "num_iters: 6.0000",
    ]
