"""Sums, products, factors, caps and gates against their references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.reference import elementwise as reference
from taco_kernels.triton import elementwise as triton_ops

pytestmark = pytest.mark.usefixtures("tensors_on_device")

# bfloat16: the interpreter cuts where the device rounds.
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"atol": 3e-6, "rtol": 1e-6},
    torch.float16: {"atol": 1e-5, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-5, "rtol": 2e-2},
}
KINDS = ("add", "multiply", "scale", "cap", "clip", "gate", "shared gate", "xielu")


def _operands(kind: str, num_rows: int, size: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """What follows x in a call."""
    y = (torch.randn(num_rows, size + 3) * 2).to(dtype)[:, :size]
    return {
        "add": (y, 0.22),
        "multiply": (y,),
        "scale": (0.4,),
        "cap": (3.0,),
        "clip": (0.7,),
        "gate": (y,),
        "shared gate": (y[:, :1],),
        "xielu": (torch.tensor([0.7, 0.4, 0.5, -0.2]),),
    }[kind]


def _pair(kind: str) -> tuple[Callable[..., None], Callable[..., Tensor]]:
    name = kind.removeprefix("shared ")
    return getattr(triton_ops, name), getattr(reference, name)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (2, 1100)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_reference(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    num_rows, size = shape
    around = torch.full((num_rows, size + 5), torch.nan, dtype=dtype)
    x = around[:, :size]
    x.copy_(torch.randn(shape) * 3)
    operands = _operands(kind, num_rows, size, dtype)
    ours, expected = _pair(kind)
    wanted = expected(x, *operands)
    ours(x, *operands)
    torch.testing.assert_close(x, wanted, **TOLERANCES[dtype])
    assert around[:, size:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_not_hidden(kind: str) -> None:
    x = torch.tensor([[torch.nan, 1.0]])
    _pair(kind)[0](x, *_operands(kind, 1, 2, torch.float32))
    assert x[0, 0].isnan()
    assert x[0, 1].isfinite()


def test_no_tokens_need_no_launch() -> None:
    for kind in KINDS:
        _pair(kind)[0](torch.empty(0, 4), *_operands(kind, 0, 4, torch.float32))


def test_error_names_the_mismatch() -> None:
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"x must be rows .*torch.int32 \[2, 4\]"):
        triton_ops.scale(x.int(), 2.0)
    with pytest.raises(ValueError, match="adjacent numbers"):
        triton_ops.cap(torch.ones(4, 2).T, 2.0)
    with pytest.raises(ValueError, match=r"second operand must be torch.float32 \[2, 4\]"):
        triton_ops.add(x, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"weight must be torch.float32 \[4\], not .* \[2, 3\]"):
        triton_ops.xielu(x, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"\[2, 1\].* not torch.float32 \[1, 1\]"):
        triton_ops.gate(x, torch.ones(1, 1))
