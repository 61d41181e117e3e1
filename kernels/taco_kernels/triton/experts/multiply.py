"""The product of a mixture of experts: rows grouped by expert, no host synchronization.

Reference: `taco_kernels.reference.experts`. The launches: two of `sort_pairs`, gate and up with the
activation, down, and the weighted sums in the order of the choice, so without atomic additions.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.packed_codes import PackedExperts
from taco_kernels.reference.activation import ALPHA, check_activation
from taco_kernels.triton.activation import activated, swiglu_clipped
from taco_kernels.triton.experts.order import sort_pairs

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def multiply_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
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
        x: [num_rows, hidden_size]; the last stride must be 1.
        ids: int32 [num_rows, top_k], contiguous; each is an expert's.
        weights: float32 [num_rows, top_k], contiguous.
        gate_up: [num_experts, 2 * intermediate_size, hidden_size], the gate's rows first.
        down: [num_experts, out_size, intermediate_size]. Both are contiguous, of x's dtype.
        activation, alpha, limit: as in `taco_kernels.reference.activation.act_mul`.
        gate_up_bias, down_bias: [num_experts, rows of the matrix], contiguous.

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
    # Blocks of rows vary fastest, so that those of one expert read its weights together.
    block_n, num_warps = (64, 4) if block_rows <= 64 else (64, 8)
    tiles = {
        "BLOCK_ROWS": block_rows,
        "BLOCK_N": block_n,
        "BLOCK_K": 64 if x.dtype != torch.float32 else 32,
        "num_warps": num_warps,
        "num_stages": 3,
    }
    _gate_up_kernel[(order.max_blocks, triton.cdiv(inner_size, block_n))](
        x,
        gate_up,
        gate_up_bias,
        inner,
        *blocks,
        x.stride(0),
        alpha,
        limit,
        TOP_K=top_k,
        K=x.shape[1],
        N=inner_size,
        ACTIVATION=activation,
        HAS_BIAS=gate_up_bias is not None,
        **tiles,
    )
    _down_kernel[(order.max_blocks, triton.cdiv(out_size, block_n))](
        inner,
        down,
        down_bias,
        outputs,
        *blocks,
        K=inner_size,
        N=out_size,
        HAS_BIAS=down_bias is not None,
        **tiles,
    )
    block = min(1024, triton.next_power_of_2(out_size))
    sum_kernel[(num_rows, triton.cdiv(out_size, block))](
        outputs, weights, out, SIZE=out_size, TOP_K=top_k, BLOCK=block
    )
    return out


def average_block_rows(num_pairs: int, num_experts: int) -> int:
    """Pairs of a block: about as many as an expert has on average, so that few are padding."""
    average = num_pairs // num_experts
    return 16 if average <= 16 else 32 if average <= 32 else 64 if average <= 64 else 128


def check_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor | PackedExperts,
    down: Tensor | PackedExperts,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> None:
    """Raises ValueError for a tensor of the wrong shape, dtype or strides."""
    num_experts, out_size, inner_size = down.shape
    if x.dtype not in _DTYPES or x.ndim != 2 or x.stride(1) != 1:
        raise ValueError(
            f"x must be float16, bfloat16 or float32 [num_rows, hidden_size] with adjacent "
            f"numbers, not {x.dtype} {list(x.shape)} with strides {x.stride()}"
        )
    num_rows, hidden_size = x.shape
    choice = (num_rows, ids.shape[-1])
    wanted: list[tuple[str, Tensor | PackedExperts | None, torch.dtype, tuple[int, ...]]] = [
        ("ids", ids, torch.int32, choice),
        ("weights", weights, torch.float32, choice),
        ("gate_up", gate_up, x.dtype, (num_experts, 2 * inner_size, hidden_size)),
        ("down", down, x.dtype, (num_experts, out_size, inner_size)),
        ("gate_up_bias", gate_up_bias, x.dtype, (num_experts, 2 * inner_size)),
        ("down_bias", down_bias, x.dtype, (num_experts, out_size)),
    ]
    for name, tensor, dtype, shape in wanted:
        if isinstance(tensor, PackedExperts):
            if tensor.shape != shape:
                raise ValueError(f"{name} must be {list(shape)}, not {list(tensor.shape)}")
        elif tensor is not None and (
            tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous {dtype} {list(shape)}, not {tensor.dtype} "
                f"{list(tensor.shape)} with strides {tensor.stride()}"
            )
    if choice[1] == 0:
        raise ValueError("each row must choose at least one expert")


@triton.jit
def _load_block(rows, starts, k, SIZE: tl.constexpr, BLOCK_K: tl.constexpr, is_row):
    """Numbers [k, k + BLOCK_K) of the rows that begin at `starts`, zeros past their ends."""
    columns = k + tl.arange(0, BLOCK_K)
    mask = is_row[:, None]
    if SIZE % BLOCK_K != 0:
        mask = mask & (columns < SIZE)[None, :]
    return tl.load(rows + starts[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def block_pairs(pairs, block_experts, block, num_pairs, BLOCK_ROWS: tl.constexpr):
    """The block's pairs, whether each is one, and its expert."""
    own = tl.load(pairs + block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))
    return own.to(tl.int64), own < num_pairs, tl.load(block_experts + block).to(tl.int64)


@triton.jit
def gated(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """`taco_kernels.reference.activation.act_mul`, all in float32."""
    if ACTIVATION == "swiglu_clipped":
        return swiglu_clipped(gate, up, alpha, limit)
    return activated(gate, ACTIVATION) * up


@triton.jit
def _gate_up_kernel(
    x,
    matrices,
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
    K: tl.constexpr,
    N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0)
    if block >= tl.load(num_blocks):
        return
    own, is_pair, expert = block_pairs(pairs, block_experts, block, num_pairs, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < N
    gate_rows = (expert * 2 * N + columns) * K
    starts = own // TOP_K * x_row
    gate = tl.zeros([BLOCK_ROWS, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_ROWS, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        rows = _load_block(x, starts, k, K, BLOCK_K, is_pair)
        gate_part = _load_block(matrices, gate_rows, k, K, BLOCK_K, is_column)
        gate = tl.dot(rows, gate_part.T, gate, input_precision="ieee")
        up_part = _load_block(matrices, gate_rows + N * K, k, K, BLOCK_K, is_column)
        up = tl.dot(rows, up_part.T, up, input_precision="ieee")
    if HAS_BIAS:
        own_bias = bias + expert * 2 * N + columns
        gate += tl.load(own_bias, mask=is_column, other=0.0).to(tl.float32)[None, :]
        up += tl.load(own_bias + N, mask=is_column, other=0.0).to(tl.float32)[None, :]
    values = gated(gate, up, alpha, limit, ACTIVATION)
    tl.store(
        out + own[:, None] * N + columns[None, :],
        values.to(out.dtype.element_ty),
        mask=is_pair[:, None] & is_column[None, :],
    )


@triton.jit
def _down_kernel(
    inner,
    matrices,
    bias,
    out,
    pairs,
    block_experts,
    num_blocks,
    num_pairs,
    K: tl.constexpr,
    N: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block = tl.program_id(0)
    if block >= tl.load(num_blocks):
        return
    own, is_pair, expert = block_pairs(pairs, block_experts, block, num_pairs, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < N
    matrix_rows = (expert * N + columns) * K
    sums = tl.zeros([BLOCK_ROWS, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        rows = _load_block(inner, own * K, k, K, BLOCK_K, is_pair)
        part = _load_block(matrices, matrix_rows, k, K, BLOCK_K, is_column)
        sums = tl.dot(rows, part.T, sums, input_precision="ieee")
    if HAS_BIAS:
        own_bias = tl.load(bias + expert * N + columns, mask=is_column, other=0.0)
        sums += own_bias.to(tl.float32)[None, :]
    tl.store(
        out + own[:, None] * N + columns[None, :],
        sums,
        mask=is_pair[:, None] & is_column[None, :],
    )


@triton.jit
def sum_kernel(outputs, weights, out, SIZE: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for rank in range(TOP_K):
        pair = row * TOP_K + rank
        output = tl.load(outputs + pair * SIZE + columns, mask=mask, other=0.0)
        total += tl.load(weights + pair) * output
    tl.store(out + row * SIZE + columns, total.to(out.dtype.element_ty), mask=mask)
