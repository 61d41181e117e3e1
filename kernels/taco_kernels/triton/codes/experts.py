"""The product of a mixture of experts whose matrices are codes.

As `taco_kernels.triton.experts.multiply`, with its order of rows and its sums: only the products
differ, which are those of `taco_kernels.triton.codes.multiply`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.packed_codes import PackedExperts
from taco_kernels.reference.activation import ALPHA, check_activation
from taco_kernels.triton.codes.multiply import arrays, layout
from taco_kernels.triton.codes.panels import multiply_panels
from taco_kernels.triton.experts.multiply import (
    average_block_rows,
    block_pairs,
    check_experts,
    gated,
    sum_kernel,
)
from taco_kernels.triton.experts.order import sort_pairs

_BLOCK_N = 64


def multiply_coded_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    *,
    activation: str = "silu",
    alpha: float = ALPHA,
    limit: float = math.inf,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Sum over the chosen experts e, in the order of the choice, of
    weight * down_e(act(gate_e(x), up_e(x))).

    Args:
        gate_up: [num_experts, 2 * intermediate_size, hidden_size], the gate's rows first.
        down: [num_experts, out_size, intermediate_size].
        x, ids, weights, activation, alpha, limit, gate_up_bias, down_bias: as of
            `taco_kernels.triton.experts.multiply.multiply_experts`.

    Returns:
        [num_rows, out_size] in x's dtype.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides, or the activation is unknown.
    """
    check_experts(x, ids, weights, gate_up, down, gate_up_bias, down_bias)
    check_activation(activation, gated=True, limit=limit)
    num_rows, top_k = ids.shape
    num_experts, out_size, inner_size = down.shape
    out = torch.empty((num_rows, out_size), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    block_rows = average_block_rows(ids.numel(), num_experts)
    order = sort_pairs(ids, num_experts, block_rows)
    blocks = (order.pairs, order.block_experts, order.num_blocks, order.num_pairs)
    inner = torch.empty((order.num_pairs, inner_size), dtype=x.dtype, device=x.device)
    outputs = torch.empty((order.num_pairs, out_size), dtype=torch.float32, device=x.device)
    tiles = {
        "BLOCK_ROWS": block_rows,
        "BLOCK_N": _BLOCK_N,
        "num_warps": 4 if block_rows <= 64 else 8,
        "num_stages": 3,
    }
    _gate_up_kernel[(order.max_blocks, triton.cdiv(inner_size, _BLOCK_N))](
        x,
        *arrays(gate_up.codes),
        gate_up.codes.order,
        gate_up_bias,
        inner,
        *blocks,
        x.stride(0),
        alpha,
        limit,
        TOP_K=top_k,
        k=x.shape[1],
        num_panels=gate_up.codes.num_panels,
        expert_n=inner_size,
        ACTIVATION=activation,
        **layout(gate_up.codes),
        HAS_ORDER=gate_up.codes.order is not None,
        HAS_BIAS=gate_up_bias is not None,
        **tiles,
    )
    _down_kernel[(order.max_blocks, triton.cdiv(out_size, _BLOCK_N))](
        inner,
        *arrays(down.codes),
        down.codes.order,
        down_bias,
        outputs,
        *blocks,
        k=inner_size,
        num_panels=down.codes.num_panels,
        expert_n=out_size,
        **layout(down.codes),
        HAS_ORDER=down.codes.order is not None,
        HAS_BIAS=down_bias is not None,
        **tiles,
    )
    block = min(1024, triton.next_power_of_2(out_size))
    sum_kernel[(num_rows, triton.cdiv(out_size, block))](
        outputs, weights, out, SIZE=out_size, TOP_K=top_k, BLOCK=block
    )
    return out


@triton.jit
def _gate_up_kernel(
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
    pairs,
    block_experts,
    num_blocks,
    num_pairs,
    x_row,
    alpha,
    limit,
    TOP_K: tl.constexpr,
    k,
    num_panels,
    expert_n,
    ACTIVATION: tl.constexpr,
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
    block = tl.program_id(0)
    if block >= tl.load(num_blocks):
        return
    own, is_pair, expert = block_pairs(pairs, block_experts, block, num_pairs, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < expert_n
    gate_rows = expert * 2 * expert_n + columns
    starts = own // TOP_K * x_row
    gate = multiply_panels(
        x,
        starts,
        is_pair,
        codes,
        gate_rows,
        is_column,
        row_scales,
        scales,
        zeros,
        minima,
        table,
        order,
        0,
        num_panels,
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
    up = multiply_panels(
        x,
        starts,
        is_pair,
        codes,
        gate_rows + expert_n,
        is_column,
        row_scales,
        scales,
        zeros,
        minima,
        table,
        order,
        0,
        num_panels,
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
        gate += tl.load(bias + gate_rows, mask=is_column, other=0.0).to(tl.float32)[:, None]
        up_bias = tl.load(bias + gate_rows + expert_n, mask=is_column, other=0.0)
        up += up_bias.to(tl.float32)[:, None]
    values = gated(gate, up, alpha, limit, ACTIVATION)
    tl.store(
        out + own[None, :] * expert_n + columns[:, None],
        values.to(out.dtype.element_ty),
        mask=is_column[:, None] & is_pair[None, :],
    )


@triton.jit
def _down_kernel(
    inner,
    codes,
    row_scales,
    scales,
    zeros,
    minima,
    table,
    order,
    bias,
    out,
    pairs,
    block_experts,
    num_blocks,
    num_pairs,
    k,
    num_panels,
    expert_n,
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
    block = tl.program_id(0)
    if block >= tl.load(num_blocks):
        return
    own, is_pair, expert = block_pairs(pairs, block_experts, block, num_pairs, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < expert_n
    matrix_rows = expert * expert_n + columns
    sums = multiply_panels(
        inner,
        own * k,
        is_pair,
        codes,
        matrix_rows,
        is_column,
        row_scales,
        scales,
        zeros,
        minima,
        table,
        order,
        0,
        num_panels,
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
        own_bias = tl.load(bias + matrix_rows, mask=is_column, other=0.0)
        sums += own_bias.to(tl.float32)[:, None]
    tl.store(
        out + own[None, :] * expert_n + columns[:, None],
        sums,
        mask=is_column[:, None] & is_pair[None, :],
    )
