"""The product of activations and a matrix of codes, which are decoded in registers.

Codes without their zeros and scales are exact in 16-bit floats, and tensor cores multiply those.
The sums of each group, in float32, are then scaled: for few rows that is cheaper than scaling each
number, and it rounds nothing.

There are four forms, for at most 16, 32, 64 and any number of rows. The bits of a row depend on the
form and on the matrix, and on nothing else: not on other rows. The forms for few rows divide k
among programs, so that all multiprocessors read the matrix; a second kernel adds their sums in the
order of k. How k is divided depends only on the form and on the matrix's shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.packed_codes import PackedCodes
from taco_kernels.packed_size import is_4_bit
from taco_kernels.triton.codes.panels import multiply_panels

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class _Form:
    """How products of a number of rows are divided.

    Attributes:
        block_rows, block_n: rows of activations, and rows of the matrix, of a program.
        max_programs: k is divided among programs up to this number of them.
    """

    block_rows: int
    block_n: int
    num_warps: int
    num_stages: int
    max_programs: int


# By the greatest number of rows.
_FORMS = {
    16: _Form(16, 64, num_warps=4, num_stages=4, max_programs=384),
    32: _Form(32, 64, num_warps=4, num_stages=4, max_programs=192),
    64: _Form(64, 64, num_warps=4, num_stages=4, max_programs=96),
}
_MANY = _Form(128, 128, num_warps=8, num_stages=3, max_programs=0)


def multiply_codes(x: Tensor, weight: PackedCodes, bias: Tensor | None = None) -> Tensor:
    """x W^T + b

    Args:
        x: float16, bfloat16 or float32 [num_rows, k]; the last stride must be 1.
        bias: [n] of x's dtype, contiguous.

    Returns:
        [num_rows, n] in x's dtype.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    _check(x, weight, bias)
    num_rows, n = x.shape[0], weight.n
    out = torch.empty((num_rows, n), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    form = _form(num_rows)
    num_panels = weight.num_panels
    blocks = triton.cdiv(n, form.block_n)
    num_parts = max(1, min(form.max_programs // blocks, num_panels // 4))
    part_panels = triton.cdiv(num_panels, num_parts)
    num_parts = triton.cdiv(num_panels, part_panels)
    sums = out
    if num_parts > 1:
        sums = torch.empty((num_parts, num_rows, n), dtype=torch.float32, device=x.device)
    order = weight.order
    if order is not None and form is _MANY:
        # Gathering once costs less than in each program.
        gathered = x.index_select(1, order.clamp(min=0))
        x, order = torch.where(order >= 0, gathered, 0), None
    _product_kernel[(triton.cdiv(num_rows, form.block_rows), blocks, num_parts)](
        x,
        *arrays(weight),
        order,
        bias,
        sums,
        num_rows,
        x.stride(0),
        k=x.shape[1],
        num_panels=num_panels,
        part_panels=part_panels,
        **layout(weight),
        HAS_ORDER=order is not None,
        HAS_BIAS=bias is not None and num_parts == 1,
        BLOCK_ROWS=form.block_rows,
        BLOCK_N=form.block_n,
        num_warps=form.num_warps,
        num_stages=form.num_stages,
    )
    if num_parts > 1:
        block = min(512, triton.next_power_of_2(n))
        _sum_kernel[(num_rows, triton.cdiv(n, block))](
            sums,
            bias,
            out,
            num_rows,
            n=n,
            NUM_PARTS=num_parts,
            HAS_BIAS=bias is not None,
            BLOCK=block,
        )
    return out


def arrays(weight: PackedCodes) -> tuple[Tensor | None, ...]:
    """What kernels take of a matrix, but for its order."""
    return (
        *(weight.codes, weight.row_scales, weight.scales),
        *(weight.zeros, weight.minima, weight.table),
    )


def layout(weight: PackedCodes) -> dict[str, Any]:
    """What kernels know of a matrix when they are compiled."""
    return {
        "n": weight.n,
        "row_size": weight.codes.stride(0),
        "KIND": weight.kind,
        "IS_4_BIT": is_4_bit(weight.kind),
        "ZERO": weight.zero,
        "TILE": weight.tile,
        "GROUP_TILES": weight.group // weight.tile,
        "HAS_SCALES": weight.scales is not None,
        "HAS_ZEROS": weight.zeros is not None,
        "HAS_MINIMA": weight.minima is not None,
    }


def _form(num_rows: int) -> _Form:
    return next((form for most, form in _FORMS.items() if num_rows <= most), _MANY)


def _check(x: Tensor, weight: PackedCodes, bias: Tensor | None) -> None:
    if x.dtype not in _DTYPES or x.ndim != 2 or x.shape[1] != weight.k or x.stride(1) != 1:
        raise ValueError(
            f"x must be float16, bfloat16 or float32 [num_rows, {weight.k}] with adjacent "
            f"numbers, not {x.dtype} {list(x.shape)} with strides {x.stride()}"
        )
    if bias is not None and (
        bias.dtype != x.dtype or bias.shape != (weight.n,) or not bias.is_contiguous()
    ):
        raise ValueError(
            f"bias must be contiguous {x.dtype} [{weight.n}], not {bias.dtype} {list(bias.shape)}"
        )


@triton.jit
def _product_kernel(
    x,
    codes,
    row_scales,
    scales,
    zeros,
    minima,
    table,
    order,
    bias,
    out,
    num_rows,
    x_row,
    k,
    num_panels,
    part_panels,
    n,
    row_size,
    KIND: tl.constexpr,
    IS_4_BIT: tl.constexpr,
    ZERO: tl.constexpr,
    TILE: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_MINIMA: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Of a block of rows, a block of the matrix's rows, and a part of k."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = rows < num_rows
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < n
    part = tl.program_id(2)
    sums = multiply_panels(
        x,
        rows.to(tl.int64) * x_row,
        is_row,
        codes,
        columns,
        is_column,
        row_scales,
        scales,
        zeros,
        minima,
        table,
        order,
        part * part_panels,
        tl.minimum((part + 1) * part_panels, num_panels),
        k,
        n,
        row_size,
        KIND,
        IS_4_BIT,
        ZERO,
        TILE,
        GROUP_TILES,
        HAS_SCALES,
        HAS_ZEROS,
        HAS_MINIMA,
        HAS_ORDER,
        BLOCK_ROWS,
        BLOCK_N,
    )
    if HAS_BIAS:
        sums += tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)[:, None]
    places = (part.to(tl.int64) * num_rows + rows[None, :]) * n + columns[:, None]
    mask = is_column[:, None] & is_row[None, :]
    tl.store(out + places, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _sum_kernel(
    sums,
    bias,
    out,
    num_rows,
    n,
    NUM_PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds the parts of k of one row, in their order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < n
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(NUM_PARTS):
        total += tl.load(sums + (part * num_rows + row) * n + columns, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * n + columns, total.to(out.dtype.element_ty), mask=mask)
