"""`bench.kernels.experts` on a small mixture."""

import pytest
import torch

from bench.kernels import experts, rounds
from support.cpu_kernels import NATIVE, kernels_of

pytestmark = pytest.mark.kernels


def test_the_dense_product_is_timed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(rounds, "wait_until_idle", lambda: None)
    shape = experts.Shape(num_experts=4, top_k=2, hidden_size=64, inner_size=32)
    limits = rounds.Limits(lambda: 1e9, 1e9)
    kernels = kernels_of(NATIVE[-1], 1)
    lines = experts.measure(kernels, shape, torch.bfloat16, [1, 8], 2, limits)
    assert [line["rows"] for line in lines] == [1, 8]
    for line in lines:
        assert "torch_us" not in line
        assert line["of_dense"] == pytest.approx(line["dense_us"] / line["us"], abs=0.001)
