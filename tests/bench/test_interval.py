import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.interval import ratio_interval, t_975

figures = st.lists(st.floats(0.01, 1e4), min_size=2, max_size=12)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (5, 2.571), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_t_matches_published_tables(degrees: int, quantile: float) -> None:
    assert t_975(degrees) == pytest.approx(quantile, abs=6e-4)


def test_an_interval_by_hand() -> None:
    """Log ratios 0 and 2h: their mean is h, their standard error h, and t of one degree 12.706."""
    h = 0.05
    interval = ratio_interval([1.0, math.exp(2 * h)], [1.0, 1.0])
    assert interval.ratio == pytest.approx(math.exp(h))
    assert interval.low == pytest.approx(math.exp(h - 12.706 * h), rel=1e-4)
    assert interval.high == pytest.approx(math.exp(h + 12.706 * h), rel=1e-4)


@given(figures, st.floats(0.1, 10))
def test_common_drift_does_not_change_the_ratio(ours: list[float], ratio: float) -> None:
    interval = ratio_interval(ours, [our / ratio for our in ours])
    assert interval.ratio == pytest.approx(ratio)
    assert interval.low == pytest.approx(interval.high)


@given(figures, figures)
def test_swapping_sides_inverts_the_ratio(ours: list[float], theirs: list[float]) -> None:
    count = min(len(ours), len(theirs))
    ours, theirs = ours[:count], theirs[:count]
    there, back = ratio_interval(ours, theirs), ratio_interval(theirs, ours)
    assume(there.high < 1e100)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)
    assert there.low <= there.ratio <= there.high


def test_one_pair_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two pairs"):
        ratio_interval([1.0], [2.0])


def test_pairs_need_both_sides() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        ratio_interval([1.0, 2.0], [2.0])
