"""Rounds of the kernel benchmarks: waiting for the threads of other libraries."""

from collections.abc import Iterable
from itertools import repeat

import pytest

from bench.kernels import rounds


class FakeTime:
    """A clock that moves while the caller sleeps; `busy` are the shares of the sleeps that some
    thread computes.
    """

    def __init__(self, busy: Iterable[float]) -> None:
        self._busy = iter(busy)
        self._used = self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self._used

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._used += seconds * next(self._busy)


def test_waits_until_spinning_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime([0.8, 0.7, 0.01, 0.9])
    monkeypatch.setattr(rounds, "time", clock)
    rounds.wait_until_idle()
    assert clock.now == pytest.approx(3 * rounds.IDLE_SECONDS)


def test_gives_up_waiting_for_threads_that_spin_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime(repeat(1.0))
    monkeypatch.setattr(rounds, "time", clock)
    rounds.wait_until_idle()
    assert clock.now == pytest.approx(1, abs=2 * rounds.IDLE_SECONDS)


@pytest.mark.parametrize(
    ("threads", "cpus"),
    [
        pytest.param(2, [3, 5], id="of_the_process"),
        pytest.param(3, [3, 5, 9], id="all"),
        pytest.param(4, None, id="more_threads_than_cpus"),
    ],
)
def test_threads_are_bound_to_cpus_of_the_process(
    monkeypatch: pytest.MonkeyPatch, threads: int, cpus: list[int] | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {9, 3, 5})
    monkeypatch.setattr(rounds, "load", lambda *given: given)
    assert rounds.load_kernels(threads) == (threads, cpus)


@pytest.mark.parametrize(
    ("theirs", "names"), [([], set()), ([lambda: None], {"dense_us"})], ids=["alone", "compared"]
)
def test_the_others_time_has_its_name(
    theirs: list[rounds.Call], names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "wait_until_idle", lambda: None)
    found = rounds.time_in_turn(
        [lambda: None],
        theirs,
        num_bytes=1,
        operations=1,
        limits=rounds.Limits(lambda: 1e9, 1e9),
        rounds=1,
        round_seconds=0,
        other="dense",
    )
    assert {name for name in found if name.endswith("_us")} == names
