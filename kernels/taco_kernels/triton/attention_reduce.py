"""Combines the partial results of programs that split a row's KV."""

from __future__ import annotations

import triton
import triton.language as tl

from taco_kernels.triton.attention_kernel import locate_tile

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_seqs", "min_query_len", "max_query_len", "num_splits"])
def reduce_splits_kernel(
    partial_out,
    partial_lse,
    out,
    sinks,
    query_start,
    num_seqs,
    min_query_len,
    max_query_len,
    num_splits,
    value_scale,
    out_token,
    out_head,
    VALUE_DIM: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    TOKENS_PER_TILE: tl.constexpr,
    IS_ONE_TILE: tl.constexpr,
):
    """One row per program: the mean of its parts, each weighted by 2 to the power of its log-sum.

    partial_out: [num_tiles * TOKENS_PER_TILE, num_heads, num_splits, VALUE_DIM]; partial_lse
    lacks the last dimension: exponents of two, -inf where a split had no share and wrote nothing.
    Grid: the first two dimensions. Splits: Dao et al. 2023, "Flash-Decoding".
    """
    slot = tl.program_id(0)
    head = tl.program_id(1)
    _, query_begin, query_len, first_token = locate_tile(
        query_start, slot // TOKENS_PER_TILE, num_seqs, TOKENS_PER_TILE, IS_ONE_TILE
    )
    token = first_token + slot % TOKENS_PER_TILE
    if (query_len < min_query_len) | (query_len > max_query_len):
        return
    if (first_token < 0) | (token >= query_len):
        return

    splits = tl.arange(0, PADDED_SPLITS)
    dims = tl.arange(0, PADDED_VALUE)
    parts = (slot.to(tl.int64) * tl.num_programs(1) + head) * num_splits + splits
    is_split = splits < num_splits
    in_head = dims < VALUE_DIM
    # Both loads at once: the numbers of an empty split are read and ignored.
    lse = tl.load(partial_lse + parts, mask=is_split, other=float("-inf"))
    numbers = tl.load(
        partial_out + parts[:, None] * VALUE_DIM + dims[None, :],
        mask=is_split[:, None] & in_head[None, :],
        other=0.0,
    )
    highest = tl.max(lse, 0)
    weights = tl.exp2(lse - highest)
    total = tl.sum(weights, 0)
    if sinks is not None:
        total += tl.exp2(tl.load(sinks + head) * _LOG2_E - highest)
    numbers = tl.where((weights > 0)[:, None], numbers * weights[:, None], 0.0)
    mean = tl.sum(numbers, 0) * (value_scale / total)
    offsets = (query_begin + token).to(tl.int64) * out_token + head * out_head + dims
    tl.store(out + offsets, mean.to(out.dtype.element_ty), mask=in_head)
