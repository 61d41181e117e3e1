"""Log probabilities of sampled and most likely tokens, without computing those of all others.

Reference: `taco_worker.sampling.torch_ops`. Every logit is read once, by `row_statistics`; the most
likely n tokens of a row lie in the n groups of 32 with the greatest logits, so that finding them
reads n more groups. Three launches, or two if no most likely tokens are requested.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.row_statistics import (
    GROUP,
    LOG2_E,
    NO_KEY,
    UNIT,
    check_column,
    check_logits,
    compute_statistics,
    float_of,
    is_finite,
    ordered_keys,
    row_weights,
)

# Tokens are found one by one: from this number on torch's sort of all is faster.
_MAX_FOUND = 128
# 16 bytes per logit: 156 MB for 64 rows of 151,936.
_SORTED_ROWS = 64
_ENTRIES = 256

_ID_BITS = tl.constexpr(0x7FFFFFFF)
_NONE_LEFT = tl.constexpr(-(2**63))


def gather_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log probabilities of one token per row, and of the most likely tokens.

    Args:
        logits: float32 [num_rows, vocab_size].
        token_ids: int64 [num_rows].
        num_top: number of most likely tokens, the same for all rows; at most vocab_size.

    Returns:
        ids (int64) and log probabilities (float32), both [num_rows, 1 + num_top]: the row's token,
        then the most likely ones, best first, lowest id among equals. ranks (int64 [num_rows]) of
        the tokens, from 1.

    Raises:
        ValueError: a tensor has the wrong type or shape.
    """
    check_logits(logits)
    num_rows, vocab_size = logits.shape
    check_column("token_ids", token_ids, torch.int64, logits, num_rows)
    if not 0 <= num_top <= vocab_size:
        raise ValueError(f"num_top must be 0 to {vocab_size}, not {num_top}")
    ids = torch.empty((num_rows, 1 + num_top), dtype=torch.int64, device=logits.device)
    values = torch.empty(ids.shape, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return ids, values, ranks
    is_found = 0 < num_top <= _MAX_FOUND
    statistics = compute_statistics(
        logits, token_ids=token_ids, has_weights=True, has_groups=is_found
    )
    if is_found:
        groups_found = triton.next_power_of_2(num_top)
        _find_most_likely[(num_rows,)](
            logits,
            logits.stride(0),
            vocab_size,
            statistics.num_groups,
            statistics.group_keys,
            num_top,
            ids,
            ids.stride(0),
            GROUPS=triton.next_power_of_2(statistics.num_groups),
            FOUND=groups_found,
            num_warps=8 if groups_found >= 64 else 4,
        )
    elif num_top:
        for some_ids, some in zip(ids.split(_SORTED_ROWS), logits.split(_SORTED_ROWS), strict=True):
            # Stable, so that the lowest id comes first among equals.
            order = torch.sort(some, dim=1, descending=True, stable=True).indices
            some_ids[:, 1:] = order[:, :num_top]
    _value_kernel[(num_rows, triton.cdiv(1 + num_top, _ENTRIES))](
        logits,
        logits.stride(0),
        statistics.num_tiles,
        statistics.tile_keys,
        statistics.tile_weights,
        statistics.tile_greater,
        token_ids,
        ids,
        values,
        ranks,
        1 + num_top,
        TILES=triton.next_power_of_2(statistics.num_tiles),
        ENTRIES=_ENTRIES,
        num_warps=4,
    )
    return ids, values, ranks


@triton.jit
def _find_most_likely(
    logits,
    stride,
    vocab_size,
    num_groups,
    group_keys,
    num_top,
    ids,
    ids_stride,
    GROUPS: tl.constexpr,
    FOUND: tl.constexpr,
):
    """Find the groups with the greatest logits, then the tokens among theirs, greatest first."""
    row = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, GROUPS)
    tops = tl.load(group_keys + row * num_groups + groups, mask=groups < num_groups, other=NO_KEY)
    ranked_groups = _ranked(tops, groups)
    slots = tl.arange(0, FOUND)
    found = tl.full([FOUND], 0, tl.int32)
    num_found = tl.minimum(num_top, num_groups)
    last = tl.full([], 2**63 - 1, tl.int64)
    for i in range(num_found):
        last = _next(ranked_groups, last)
        found = tl.where(slots == i, _id_of(last).to(tl.int32), found)

    tokens = found[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_token = (slots < num_found)[:, None] & (tokens < vocab_size)
    numbers = tl.load(logits + row * stride + tokens, mask=is_token, other=0.0)
    ranked_tokens = _ranked(tl.where(is_token, ordered_keys(numbers), NO_KEY), tokens)
    last = tl.full([], 2**63 - 1, tl.int64)
    for i in range(num_top):
        last = _next(ranked_tokens, last)
        tl.store(ids + row * ids_stride + 1 + i, _id_of(last))


@triton.jit
def _ranked(keys, numbers):
    """Distinct int64 ranks: in the order of the keys, the lower number first among equals."""
    return (keys.to(tl.int64) << 32) | (numbers ^ _ID_BITS).to(tl.int64)


@triton.jit
def _next(ranked, last):
    return tl.max(tl.where(ranked < last, ranked, _NONE_LEFT))


@triton.jit
def _id_of(ranked):
    return (ranked & _ID_BITS) ^ _ID_BITS


@triton.jit
def _value_kernel(
    logits,
    stride,
    num_tiles,
    tile_keys,
    tile_weights,
    tile_greater,
    token_ids,
    ids,
    values,
    ranks,
    width,
    TILES: tl.constexpr,
    ENTRIES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, TILES)
    is_tile = tiles < num_tiles
    tops = tl.load(tile_keys + row * num_tiles + tiles, mask=is_tile, other=NO_KEY)
    weights = tl.load(tile_weights + row * num_tiles + tiles, mask=is_tile, other=0)
    top = tl.max(tops)
    greatest = float_of(top)
    total = tl.sum(row_weights(tops, weights, greatest, LOG2_E))
    log_total = tl.log(tl.maximum(total, 1).to(tl.float64) / UNIT)
    own = tl.load(token_ids + row)

    entries = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    is_other = (entries > 0) & (entries < width)
    entry_ids = tl.where(entries > 0, tl.load(ids + row * width + entries, mask=is_other), own)
    numbers = tl.load(logits + row * stride + entry_ids, mask=entries < width, other=0.0)
    logprobs = numbers.to(tl.float64) - greatest.to(tl.float64) - log_total
    # Without a finite maximum no token has a share.
    logprobs = tl.where(is_finite(top), logprobs, float("nan"))
    tl.store(values + row * width + entries, logprobs.to(tl.float32), mask=entries < width)
    if tl.program_id(1) == 0:
        tl.store(ids + row * width, own)
        greater = tl.load(tile_greater + row * num_tiles + tiles, mask=is_tile, other=0)
        tl.store(ranks + row, tl.sum(greater).to(tl.int64) + 1)
