"""Causal convolutions of a step's sequences, one launch.

Reference: `taco_kernels.reference.recurrence.convolve`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.attention_kernel import locate_tile
from taco_kernels.triton.recurrence.sequence_rows import (
    SequenceRows,
    check_memory,
    check_parameter,
    check_tokens,
    row_arguments,
)

# The tile of a program: tokens at most, where the state is not longer, and numbers.
_TOKENS = 16
_NUMBERS = 2048
_MAX_COLUMNS = 512


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    memory: Tensor,
    states: SequenceRows,
    *,
    activation: str | None,
) -> Tensor:
    """A causal convolution of each column over its sequence, in float32.

    A token's bits do not depend on how its sequence is cut into steps.

    Args:
        x: [num_tokens, columns]; the last stride must be 1.
        weight: [columns, width], width 2 or more.
        bias: [columns].
        memory: float32 [num_rows, width - 1, columns], of which each row is contiguous: the inputs
            before a sequence's first token, oldest first.
        activation: "silu" or None.

    Returns:
        [num_tokens, columns] in x's dtype, contiguous.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides, or the activation is unknown.
    """
    columns, width = weight.shape
    if width < 2 or activation not in (None, "silu"):
        raise ValueError(
            "a convolution must have width 2 or more, and silu or no activation, not width "
            f"{width} and {activation!r}"
        )
    check_tokens("x", x, (len(x), columns))
    check_parameter("weight", weight, (columns, width))
    if bias is not None:
        check_parameter("bias", bias, (columns,))
    check_memory(memory, (width - 1, columns))
    arguments = row_arguments(states)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_tokens, num_seqs = len(x), len(states.rows)
    if num_tokens == 0 or num_seqs == 0:
        return out
    longest = max(states.query_lens_host)
    # Tokens of later tiles do not need the state, which the first tile's program overwrites.
    tile = triton.next_power_of_2(min(longest, max(_TOKENS, width - 1)))
    is_one_tile = longest <= tile
    block = min(_MAX_COLUMNS, triton.next_power_of_2(columns), max(64, _NUMBERS // tile))
    num_tiles = num_seqs if is_one_tile else num_tokens // tile + num_seqs
    _convolve_kernel[(num_tiles, triton.cdiv(columns, block))](
        x,
        weight,
        x if bias is None else bias,  # not read without a bias
        out,
        memory,
        *arguments,
        num_seqs,
        x.stride(0),
        memory.stride(0),
        COLUMNS=columns,
        WIDTH=width,
        HAS_BIAS=bias is not None,
        IS_SILU=activation == "silu",
        TOKENS=tile,
        IS_ONE_TILE=is_one_tile,
        PADDED_STATE=triton.next_power_of_2(width - 1),
        BLOCK=block,
        num_warps=4,
    )
    return out


@triton.jit(do_not_specialize=["num_seqs"])
def _convolve_kernel(
    x,
    weight,
    bias,
    out,
    memory,
    query_start,
    rows,
    sources,
    saved_tokens,
    saved_rows,
    num_seqs,
    x_token,
    memory_row,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    IS_ONE_TILE: tl.constexpr,
    PADDED_STATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per TOKENS tokens of a sequence and BLOCK columns; the first of a sequence also
    stores its states. x_token and memory_row are strides.
    """
    sequence, begin, length, first_token = locate_tile(
        query_start, tl.program_id(0), num_seqs, TOKENS, IS_ONE_TILE
    )
    if first_token < 0:
        return
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = columns < COLUMNS
    x += begin.to(tl.int64) * x_token
    out += begin.to(tl.int64) * COLUMNS
    source = tl.load(sources + sequence)
    state = memory + source.to(tl.int64) * memory_row
    has_state = source >= 0

    tokens = first_token + tl.arange(0, TOKENS)
    sums = tl.zeros([TOKENS, BLOCK], tl.float32)
    if HAS_BIAS:
        sums += tl.load(bias + columns, mask=in_row, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(WIDTH):
        inputs = _inputs(
            x, x_token, state, has_state, tokens + tap - WIDTH + 1, length, columns, COLUMNS, WIDTH
        )
        factors = tl.load(weight + columns * WIDTH + tap, mask=in_row, other=0.0).to(tl.float32)
        sums = tl.fma(inputs, tl.broadcast_to(factors[None, :], [TOKENS, BLOCK]), sums)
    if IS_SILU:
        sums = sums / (1.0 + tl.exp(-sums))
    out_at = out + tokens.to(tl.int64)[:, None] * COLUMNS + columns[None, :]
    out_mask = (tokens < length)[:, None] & in_row[None, :]
    tl.store(out_at, sums.to(out.dtype.element_ty), mask=out_mask)

    if first_token == 0:
        num_saved = tl.load(saved_tokens + sequence)
        latest = tl.arange(0, PADDED_STATE)
        before = latest - WIDTH + 1
        last = _inputs(
            x, x_token, state, has_state, length + before, length, columns, COLUMNS, WIDTH
        )
        saved = _inputs(
            x, x_token, state, has_state, num_saved + before, length, columns, COLUMNS, WIDTH
        )
        # The row may be the source: no thread may store before all have loaded.
        tl.debug_barrier()
        row = tl.load(rows + sequence).to(tl.int64) * memory_row
        saved_row = tl.load(saved_rows + sequence).to(tl.int64) * memory_row
        places = latest[:, None] * COLUMNS + columns[None, :]
        mask = (latest < WIDTH - 1)[:, None] & in_row[None, :]
        tl.store(memory + row + places, last, mask=mask)
        tl.store(memory + saved_row + places, saved, mask=mask & (num_saved > 0))


@triton.jit
def _inputs(
    x,
    x_token,
    state,
    has_state,
    positions,
    length,
    columns,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The inputs at positions of a sequence, of which the state has the negative ones; float32.

    x and state are the sequence's; without a state its inputs are zeros.
    """
    in_row = (columns < COLUMNS)[None, :]
    is_token = ((positions >= 0) & (positions < length))[:, None]
    own = tl.load(
        x + positions.to(tl.int64)[:, None] * x_token + columns[None, :],
        mask=is_token & in_row,
        other=0.0,
    )
    earlier = tl.load(
        state + (positions + WIDTH - 1)[:, None] * COLUMNS + columns[None, :],
        mask=(positions < 0)[:, None] & in_row & has_state,
        other=0.0,
    )
    return tl.where((positions < 0)[:, None], earlier, own.to(tl.float32))
