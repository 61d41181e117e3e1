"""`bench.kernels.outliers`: the order of a pair, and which of the two the figures are of."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bench.kernels import outliers


def test_the_order_of_a_pair_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, planted = torch.zeros(1), torch.ones(1)
    timed = []

    def seconds_of(kernels: Any, matrices: Any, rows: torch.Tensor) -> float:
        timed.append("planted" if rows is planted else "plain")
        return 3e-6 if rows is planted else 2e-6

    monkeypatch.setattr(outliers, "seconds_of", seconds_of)
    found = outliers.compare(Mock(), [], planted, plain, pairs=3)
    forth = ["plain", "planted"]
    assert timed[2:] == forth + forth[::-1] + forth  # after the pair that warms up
    assert found == {"us": 2.0, "ratio": 1.5, "low": 1.5, "high": 1.5}


@pytest.mark.parametrize("same_columns", [True, False])
def test_each_row_has_its_outliers(same_columns: bool) -> None:
    planted = outliers.plant(torch.zeros(5, 40), 3, same_columns=same_columns)
    is_outlier = planted == outliers.SIZE
    assert is_outlier.sum(dim=1).tolist() == [3] * 5
    assert bool((is_outlier == is_outlier[0]).all()) == same_columns
