import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taco_kernels.native.draft_selector import DraftSelector


def fresh() -> DraftSelector:
    return DraftSelector(np.zeros(1, dtype=np.float32), 1)


def estimate(times: DraftSelector, num_tokens: int) -> float:
    return float(times.step_seconds(num_tokens, 1)[0])


def test_no_estimate_before_the_first_step() -> None:
    times = fresh()
    assert not times.is_ready
    with pytest.raises(ValueError, match="no step has been measured"):
        times.step_seconds(1, 1)
    times.observe_step(1, 0.01)
    assert times.is_ready


@example([(1, 0.06807439873523452), (2, 0.5806687853383953), (3, 0.5)])
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-4, 1.0)), min_size=1, max_size=50))
def test_more_tokens_never_take_less(steps: list[tuple[int, float]]) -> None:
    times = fresh()
    for num_tokens, seconds in steps:
        times.observe_step(num_tokens, seconds)
    estimates = times.step_seconds(1, 6000)
    assert (np.diff(estimates) >= 0).all()
    assert (estimates > 0).all()


def test_between_sizes_times_are_interpolated() -> None:
    times = fresh()
    for _ in range(30):
        times.observe_step(1, 0.010)
        times.observe_step(8, 0.017)
    assert estimate(times, 1) == pytest.approx(0.010, rel=0.02)
    assert estimate(times, 8) == pytest.approx(0.017, rel=0.02)
    assert estimate(times, 4) == pytest.approx(0.013, rel=0.03)


def test_unmeasured_size_is_assumed_to_cost_little_more() -> None:
    times = fresh()
    times.observe_step(1, 0.010)
    assert 0.010 < estimate(times, 9) < 0.013


def test_one_slow_step_changes_little() -> None:
    times = fresh()
    for _ in range(20):
        times.observe_step(4, 0.010)
    times.observe_step(4, 10.0)
    assert estimate(times, 4) < 0.012


def test_a_size_that_was_slow_once_is_tried_again_in_time() -> None:
    times = fresh()
    times.observe_step(1, 0.010)
    times.observe_step(8, 0.100)
    for _ in range(3000):
        times.observe_step(1, 0.010)
    assert estimate(times, 8) < 0.013


def test_prefill_times_do_not_affect_decode_estimates() -> None:
    times = fresh()
    times.observe_step(1, 0.010)
    for _ in range(1000):
        times.observe_step(2048, 5.0)
    assert estimate(times, 1) == pytest.approx(0.010)
