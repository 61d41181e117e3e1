"""Which gradients wait for which others, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_train.lightcc.negotiation import bucket_planner
from taco_train.lightcc.negotiation.bucket_planner import BucketPlanner, Unit
from taco_train.lightcc.negotiation.coordinator import Coordinator
from taco_train.lightcc.negotiation.messages import Ready
from taco_train.lightcc.negotiation.requests import Kind, Request

SUM = Request(Kind.ALL_REDUCE, "", "float32", op="sum")
PASS_SECONDS = 10.0


def unit(name: str, num_bytes: int = 4) -> Unit:
    return Unit(((0, name),), SUM, num_bytes)


def names(buckets: Sequence[Sequence[Unit]] | None) -> list[str]:
    """A text for each bucket, of names with one letter."""
    assert buckets is not None
    return ["".join(key[1] for one in bucket for key in one.name) for bucket in buckets]


def planner(limit: int | None = 8) -> BucketPlanner:
    return BucketPlanner(lambda gradients: limit)


def run_passes(one: BucketPlanner, text: str, count: int = 4, step: float = 0.05) -> float:
    """Passes in which nothing is held; returns the time after them."""
    for number in range(count):
        for index, name in enumerate(text):
            assert one.add(unit(name), number * PASS_SECONDS + index * step) is None
    return count * PASS_SECONDS


def run_pass(one: BucketPlanner, text: str, now: float) -> list[str]:
    """What is released after each name."""
    return ["|".join(names(one.add(unit(name), now))) for name in text]


def planned(text: str = "abcd", limit: int = 8) -> tuple[BucketPlanner, float]:
    """A planner that has measured, and the time of the next pass."""
    one = planner(limit)
    return one, run_passes(one, text)


def test_a_bucket_is_released_when_it_is_complete() -> None:
    one, now = planned()
    for text in ("abcd", "abcd", "cbda"):
        released = "".join(f"{name}:{bucket} " for name, bucket in zip(
            text, run_pass(one, text, now), strict=True
        ))  # fmt: skip
        assert released in ("a: b:ab c: d:cd ", "c: b: d:cd a:ab ")
        assert one.next_due is None
        now += PASS_SECONDS


def test_nothing_is_held_before_costs_are_known() -> None:
    one = planner(None)
    run_passes(one, "abcd", count=20)
    assert one.next_due is None


def test_names_that_come_now_and_then_are_not_held() -> None:
    one = planner()
    for text in ("ab", "abx", "ab", "abx"):
        for name in text:
            assert one.add(unit(name), 0.0) is None
    assert names(one.add(unit("a"), 0.0)) == []
    assert one.add(unit("x"), 0.0) is None
    assert names(one.add(unit("b"), 0.0)) == ["ab"]


def test_signatures_do_not_share_a_bucket() -> None:
    one = planner(100)
    other = Unit(((0, "x"),), Request(Kind.ALL_REDUCE, "", "float64", op="sum"), 8)
    units = [unit("a"), other, unit("b")]
    for _ in range(4):
        for each in units:
            one.add(each, 0.0)
    assert [names(one.add(each, 0.0)) for each in units] == [[], ["x"], ["ab"]]


def test_an_incomplete_bucket_is_released_after_a_while() -> None:
    one, now = planned(limit=16)
    assert names(one.add(unit("b"), now)) == []
    assert names(one.add(unit("a"), now + 0.1)) == []
    due = one.next_due
    assert due is not None
    assert now + 2 * 0.15 < due < now + 2 * 0.15 + 0.1  # the passes took 0.15 s
    assert one.overdue(due - 0.01) == []
    assert names(one.overdue(due)) == ["ab"]
    assert one.next_due is None
    # The rest of the bucket does not wait for those that have gone.
    assert run_pass(one, "dc", due) == ["d", "c"]
    assert run_pass(one, "abcd", due + 1) == ["", "", "", "abcd"]


def test_buckets_that_stay_incomplete_are_measured_again_and_then_given_up() -> None:
    """Ranks that wait for one gradient before they compute the next never fill a bucket."""
    one, num_late = planner(), 0
    for _ in range(100):
        for name in "ab":
            released = one.add(unit(name), 0.0)
            late = one.overdue(1.0)
            num_late += len(late)
            assert [*(released or []), *late] == [[unit(name)]] or released is None
    assert 5 <= num_late <= 10
    assert one.next_due is None


def test_a_waiting_rank_gets_all_that_is_held() -> None:
    one, now = planned(limit=16)
    run_pass(one, "ab", now)
    assert names(one.release()) == ["ab"]
    assert one.next_due is None


def test_a_change_of_size_ends_the_plan() -> None:
    one, now = planned(limit=16)
    one.add(unit("a"), now)
    assert names(one.add(unit("b", 400), now)) == ["a", "b"]
    assert one.add(unit("c"), now) is None


def test_names_that_never_come_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_planner, "_MAX_PASS", 5)
    one = planner(100)
    for number in range(100):
        assert one.add(unit(f"metric {number}"), float(number)) is None
        assert len(one._pass) <= 5
    run_passes(one, "abc")
    assert run_pass(one, "abc", 0.0) == ["", "", "abc"]


def test_failed_requests_are_forgotten() -> None:
    one, now = planned(limit=16)
    run_pass(one, "abc", now)
    one.forget([(0, "a"), (0, "c")])
    assert names(one.release()) == ["b"]


@given(
    passes=st.lists(st.permutations("abcdef"), min_size=6, max_size=12),
    limit=st.integers(4, 24),
    gaps=st.lists(st.floats(0, 0.4), min_size=1, max_size=7),
)
def test_every_unit_is_released_once(
    passes: list[list[str]], limit: int, gaps: list[float]
) -> None:
    one, now = planner(limit), 0.0
    for number, text in enumerate(passes):
        released = []
        for index, name in enumerate(text):
            now += gaps[(number + index) % len(gaps)]
            buckets = one.add(unit(name), now)
            released += [name] if buckets is None else names(buckets)
            released += names(one.overdue(now))
        released += names(one.release())
        assert sorted("".join(released)) == list("abcdef")
        assert one.next_due is None


def gradient(name: str) -> Request:
    return Request(Kind.ALL_REDUCE, name, "float32", (4,), op="average")


def num_run(one: Coordinator, name: str, now: float = 100.0) -> int:
    """How many requests run once both ranks have submitted this one."""
    for rank in range(2):
        one.receive(rank, Ready(requests=[gradient(name)]), now)
    return sum(len(batch.ids) or len(batch.requests) for batch in one.take_batches(now))


@pytest.fixture
def coordinator() -> Coordinator:
    """It has measured passes of four gradients, two of which fit into a bucket."""
    one = Coordinator(2, fusion_bytes=1000, planner=planner(32))
    for _ in range(4):
        assert [num_run(one, name, 0.0) for name in "abcd"] == [1, 1, 1, 1]
    return one


def test_the_coordinator_runs_planned_buckets(coordinator: Coordinator) -> None:
    assert [num_run(coordinator, name) for name in "abcd"] == [0, 2, 0, 2]


def test_the_coordinator_wakes_for_incomplete_buckets(coordinator: Coordinator) -> None:
    assert coordinator.next_due is None
    assert num_run(coordinator, "a") == 0
    due = coordinator.next_due
    assert due is not None
    assert coordinator.take_batches(100.0) == []
    assert len(coordinator.take_batches(due)) == 1
    assert coordinator.next_due is None


def test_a_blocked_rank_gets_its_gradient(coordinator: Coordinator) -> None:
    assert num_run(coordinator, "a") == 0
    coordinator.receive(1, Ready(blocked=True), 100.1)
    assert len(coordinator.take_batches(100.1)) == 1


def test_held_gradients_fail_with_a_rank_that_leaves(coordinator: Coordinator) -> None:
    assert num_run(coordinator, "a") == 0
    coordinator.lose(1)
    (batch,) = coordinator.take_batches(100.1)
    assert "rank 1 is gone" in batch.error
    assert coordinator.next_due is None
