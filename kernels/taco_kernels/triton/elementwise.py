"""Sums, products, factors, caps and gates of rows, in place: one launch each.

Reference: `taco_kernels.reference.elementwise`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_BLOCK = 1024


def add(x: Tensor, y: Tensor, factor: float = 1.0) -> None:
    """x += factor * y

    Args:
        x, y: [num_tokens, size] of one dtype; the last stride must be 1, as in all functions here.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides; likewise in all functions here.
    """
    _launch(x, "add", factor, y, x.shape[-1])


def scale(x: Tensor, factor: float) -> None:
    """x *= factor"""
    _launch(x, "scale", factor)


def cap(x: Tensor, limit: float) -> None:
    """x = limit * tanh(x / limit)"""
    _launch(x, "cap", limit)


def clip(x: Tensor, limit: float) -> None:
    """x within [-limit, limit]"""
    _launch(x, "clip", limit)


def xielu(x: Tensor, weight: Tensor) -> None:
    """x = xIELU(x)

    Args:
        weight: float32 [4], as of the reference.
    """
    if weight.dtype != torch.float32 or weight.shape != (4,) or weight.stride(0) != 1:
        raise ValueError(
            f"the weight must be torch.float32 [4], not {weight.dtype} {list(weight.shape)}"
        )
    _check(x)
    _run(x, "xielu", 0.0, weight, 0)


def multiply(x: Tensor, y: Tensor) -> None:
    """x *= y; y as x."""
    _launch(x, "multiply", 0.0, y, x.shape[-1])


def gate(x: Tensor, gate: Tensor) -> None:
    """x *= sigmoid(gate); gate [num_tokens, size] or [num_tokens, 1]."""
    _launch(x, "gate", 0.0, gate, 1 if gate.shape[-1] == 1 else x.shape[-1])


def _launch(
    x: Tensor, kind: str, number: float, other: Tensor | None = None, other_size: int = 0
) -> None:
    _check(x)
    if other is None:
        other = x  # not read
    elif other.dtype != x.dtype or other.shape != (len(x), other_size) or other.stride(1) != 1:
        raise ValueError(
            f"the second operand must be {x.dtype} {[len(x), other_size]} with adjacent "
            f"numbers, not {other.dtype} {list(other.shape)} with strides {other.stride()}"
        )
    _run(x, kind, number, other, other.stride(0), is_shared=other_size == 1)


def _check(x: Tensor) -> None:
    if x.dtype not in _DTYPES or x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(
            f"x must be rows of float16, bfloat16 or float32 with adjacent numbers, not {x.dtype} "
            f"{list(x.shape)} with strides {x.stride()}"
        )


def _run(
    x: Tensor,
    kind: str,
    number: float,
    other: Tensor,
    other_stride: int,
    *,
    is_shared: bool = False,
) -> None:
    """`other_stride`: numbers from one token's second operand to the next token's."""
    if x.numel() == 0:
        return
    num_tokens, size = x.shape
    block = min(_BLOCK, max(64, triton.next_power_of_2(size)))
    _row_kernel[(num_tokens, triton.cdiv(size, block))](
        x,
        other,
        x.stride(0),
        other_stride,
        number,
        KIND=kind,
        IS_SHARED=is_shared,
        SIZE=size,
        BLOCK=block,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["number"])
def _row_kernel(
    x,
    other,
    x_token,
    other_token,
    number,
    KIND: tl.constexpr,
    IS_SHARED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per BLOCK columns of a token; x_token and other_token are strides."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    target = x + token * x_token + columns
    numbers = tl.load(target, mask=mask, other=0.0).to(tl.float32)
    other += token * other_token
    if KIND == "add":
        numbers += number * tl.load(other + columns, mask=mask, other=0.0).to(tl.float32)
    elif KIND == "multiply":
        numbers *= tl.load(other + columns, mask=mask, other=0.0).to(tl.float32)
    elif KIND == "scale":
        numbers *= number
    elif KIND == "cap":
        # tanh(u) = 2 sigmoid(2 u) - 1
        numbers = number * (2.0 / (1.0 + tl.exp(-2.0 * numbers / number)) - 1.0)
    elif KIND == "clip":
        numbers = tl.where(numbers > number, number, numbers)
        numbers = tl.where(numbers < -number, -number, numbers)
    elif KIND == "xielu":
        beta, eps = tl.load(other + 2), tl.load(other + 3)
        below = tl.exp(tl.minimum(numbers, eps)) - 1.0 - numbers
        below *= beta + tl.load(other + 1)
        above = tl.load(other) * numbers * numbers
        numbers = tl.where(numbers > 0.0, above, below) + beta * numbers
    else:
        tl.static_assert(KIND == "gate")
        if IS_SHARED:
            numbers *= 1.0 / (1.0 + tl.exp(-tl.load(other).to(tl.float32)))
        else:
            gates = tl.load(other + columns, mask=mask, other=0.0).to(tl.float32)
            numbers *= 1.0 / (1.0 + tl.exp(-gates))
    tl.store(target, numbers.to(x.dtype.element_ty), mask=mask)
