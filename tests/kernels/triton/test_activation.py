"""Activations, plain and gated, against their references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.reference import activation as reference
from taco_kernels.triton import activation
from taco_kernels.triton.activation import act_mul, activate

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
    assert act_mul(gate_up, out=rows) is rows
    torch.testing.assert_close(rows, reference.act_mul(gate_up), **TOLERANCES[dtype])
    assert out[:, size:].isnan().all()
    assert torch.equal(act_mul(gate_up), rows)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", reference.GATED_ACTIVATIONS)
def test_every_kind(kind: str, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(3, 2 * 70) * 4).to(dtype)
    options: dict[str, Any] = {"alpha": 1.5, "limit": 2.0} if kind == "swiglu_clipped" else {}
    tolerance = {**TOLERANCES[dtype], "atol": 4e-6 if dtype == torch.float32 else 1e-3}
    expected = reference.act_mul(gate_up, kind, **options)
    torch.testing.assert_close(act_mul(gate_up, kind, **options), expected, **tolerance)
    if kind in reference.ACTIVATIONS:
        wanted = reference.activate(gate_up, kind)
        torch.testing.assert_close(activate(gate_up, kind), wanted, **tolerance)
        assert activate(gate_up, kind, out=gate_up) is gate_up
        torch.testing.assert_close(gate_up, wanted, **tolerance)


def test_without_a_limit_nothing_is_clipped() -> None:
    gate_up = torch.randn(2, 12) * 100
    expected = reference.act_mul(gate_up, "swiglu_clipped")
    torch.testing.assert_close(act_mul(gate_up, "swiglu_clipped"), expected)


@pytest.mark.parametrize("kind", reference.ACTIVATIONS)
def test_nan_is_not_hidden(kind: str) -> None:
    out = activate(torch.tensor([[torch.nan, 1.0]]), kind)
    assert out[0, 0].isnan()
    assert out[0, 1].isfinite()


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(ValueError, match="unknown activation 'mish'; known: relu, "):
        act_mul(torch.ones(2, 8), "mish")
    with pytest.raises(ValueError, match="unknown activation 'swiglu_clipped'"):
        activate(torch.ones(2, 8), "swiglu_clipped")
    with pytest.raises(ValueError, match="limit of swiglu_clipped must be positive, not 0"):
        act_mul(torch.ones(2, 8), "swiglu_clipped", limit=0.0)


def test_rounds_where_the_reference_does() -> None:
    """One rounding more or less would change a quarter of the numbers."""
    gate_up = torch.randn(2, 2000).half()
    same = act_mul(gate_up) == reference.act_mul(gate_up)
    assert same.float().mean() > 0.99


def test_gates_far_below_zero_close() -> None:
    gate_up = torch.tensor([[-1e4, -200.0, 1e4, 2.0, 2.0, 2.0]])
    assert torch.equal(act_mul(gate_up), torch.tensor([[-0.0, -0.0, 2e4]]))


def test_no_tokens_need_no_launch() -> None:
    assert act_mul(torch.empty(0, 8)).shape == (0, 4)


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
        act_mul(gate_up, out=out)
