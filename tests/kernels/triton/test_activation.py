"""The gated activation against its reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.reference import activation as reference
from taco_kernels.triton import activation
from taco_kernels.triton.activation import silu_mul

pytestmark = pytest.mark.usefixtures("tensors_on_device")

# bfloat16: the interpreter cuts where the device rounds, twice.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"atol": 1e-6, "rtol": 1e-6},
    torch.float16: {"atol": 1e-6, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-6, "rtol": 2e-2},
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (2, 1100), (1, 4100)], ids=str)
@pytest.mark.parametrize("is_large", [False, True])
def test_agrees_with_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:
        monkeypatch.setattr(activation, "_FEW_NUMBERS", 0)
    num_tokens, size = shape
    around = torch.full((num_tokens, 2 * size + 3), torch.nan, dtype=dtype)
    gate_up = around[:, : 2 * size]
    gate_up.copy_(torch.randn(num_tokens, 2 * size) * 4)
    out = torch.full((num_tokens, size + 7), torch.nan, dtype=dtype)
    rows = out[:, :size]
    assert silu_mul(gate_up, out=rows) is rows
    torch.testing.assert_close(rows, reference.silu_mul(gate_up), **TOLERANCES[dtype])
    assert out[:, size:].isnan().all()
    assert torch.equal(silu_mul(gate_up), rows)


def test_rounds_where_the_reference_does() -> None:
    """One rounding more or less would change a quarter of the numbers."""
    gate_up = torch.randn(2, 2000).half()
    same = silu_mul(gate_up) == reference.silu_mul(gate_up)
    assert same.float().mean() > 0.99


def test_gates_far_below_zero_close() -> None:
    gate_up = torch.tensor([[-1e4, -200.0, 1e4, 2.0, 2.0, 2.0]])
    assert torch.equal(silu_mul(gate_up), torch.tensor([[-0.0, -0.0, 2e4]]))


def test_no_tokens_need_no_launch() -> None:
    assert silu_mul(torch.empty(0, 8)).shape == (0, 4)


@pytest.mark.parametrize(
    ("gate_up", "out", "message"),
    [
        (torch.ones(2, 7), None, r"gate_up must be .*\[2, 7\]"),
        (torch.ones(2, 8, dtype=torch.int32), None, "gate_up must be .*torch.int32"),
        (torch.ones(2, 8), torch.ones(2, 5), r"out must be .*\[2, 4\] .*\[2, 5\]"),
        (torch.ones(8, 2).T, None, r"adjacent numbers.*\(1, 2\)"),
    ],
)
def test_error_names_the_mismatch(gate_up: Tensor, out: Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        silu_mul(gate_up, out=out)
