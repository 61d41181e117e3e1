"""Samples one token per row: the most likely one, or a random one after filters, without a sort.

Reference: `taco_worker.sampling.top_k_top_p`. The launches:

1. `row_statistics` reads every logit once. For greedy rows, or sampling without filters, that is
the
   lower bound: 4 bytes per logit, 36 us for 256 rows of 151,936 at 4.3 TB/s, and the time of two
   launches for one row.
2. `_sample_kernel`, one program per row, reads one tile of 2048 logits, which holds the token. With
   filters it reads the 256 groups of 32 tokens with the greatest logits instead. If these hold all
   tokens that the filters can keep, as for most rows of a trained model, the row is done.
3. `sample_wide`, only with filters: rows that keep more tokens, one program each.

A token depends on its row alone, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.sampling_metadata import NO_TOKEN
from taco_kernels.triton.row_statistics import (
    GROUP,
    NO_KEY,
    TILE,
    RowStatistics,
    check_column,
    check_logits,
    compute_statistics,
    fixed_weights,
    float_of,
    floor_key,
    is_finite,
    ordered_keys,
    row_weights,
    sharpness_of,
    tile_tokens,
)
from taco_kernels.triton.sample_wide import UNRESOLVED, sample_wide
from taco_kernels.triton.top_k_top_p_threshold import (
    find_share,
    greatest_cut,
    least_cut,
    nucleus_weight,
    share_of,
)

NO_TOKEN_ID = tl.constexpr(NO_TOKEN)

# Groups of tokens that fit into one program's registers.
_CANDIDATE_GROUPS = 256


class DeviceSamplingMetadata(NamedTuple):
    """The columns of `taco_kernels.sampling_metadata.SamplingMetadata` on the device."""

    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    uniforms: Tensor


def most_likely_tokens(logits: Tensor) -> Tensor:
    """The most likely token per row, lowest id among equals, or NO_TOKEN: int64 [num_rows].

    Takes two launches.

    Raises:
        ValueError: logits are not float32 rows.
    """
    check_logits(logits)
    statistics = compute_statistics(logits)
    return _sample(logits, statistics, None, has_filters=False)


def sample_tokens(logits: Tensor, metadata: DeviceSamplingMetadata, *, has_filters: bool) -> Tensor:
    """Sample one token per row, independently of the other rows.

    Args:
        logits: float32 [num_rows, vocab_size].
        has_filters: whether any row with a temperature has min_p, top_k or top_p. The host knows
            it; without filters two launches are enough.

    Returns:
        int64 [num_rows]; NO_TOKEN where the greatest logit is not finite.

    Raises:
        ValueError: a tensor has the wrong type or shape.
    """
    check_logits(logits)
    for name, column in metadata._asdict().items():
        dtype = {"top_k": torch.int32, "uniforms": torch.float64}.get(name, torch.float32)
        check_column(name, column, dtype, logits, logits.shape[0])
    statistics = compute_statistics(
        logits, temperature=metadata.temperature, has_weights=True, has_groups=has_filters
    )
    token_ids = _sample(logits, statistics, metadata, has_filters=has_filters)
    if has_filters:
        sample_wide(logits, statistics, *metadata, token_ids)
    return token_ids


def _sample(
    logits: Tensor,
    statistics: RowStatistics,
    metadata: DeviceSamplingMetadata | None,
    *,
    has_filters: bool,
) -> Tensor:
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows == 0:
        return token_ids
    num_candidates = _CANDIDATE_GROUPS if has_filters else 0
    candidates = statistics.group_keys.new_empty((num_rows, num_candidates))
    _sample_kernel[(num_rows,)](
        logits,
        logits.stride(0),
        vocab_size,
        statistics.num_tiles,
        statistics.num_groups,
        *(metadata or (logits,) * 5),
        statistics.tile_keys,
        statistics.tile_weights,
        statistics.group_keys,
        candidates,
        token_ids,
        IS_RANDOM=metadata is not None,
        HAS_FILTERS=has_filters,
        TILES=triton.next_power_of_2(statistics.num_tiles),
        GROUPS=triton.next_power_of_2(max(1, statistics.num_groups)),
        CANDIDATE_GROUPS=_CANDIDATE_GROUPS,
        num_warps=8 if has_filters else 4,
    )
    return token_ids


@triton.jit
def _sample_kernel(
    logits,
    stride,
    vocab_size,
    num_tiles,
    num_groups,
    temperature,
    min_p,
    top_k,
    top_p,
    uniforms,
    tile_keys,
    tile_weights,
    group_keys,
    candidates,
    token_ids,
    IS_RANDOM: tl.constexpr,
    HAS_FILTERS: tl.constexpr,
    TILES: tl.constexpr,
    GROUPS: tl.constexpr,
    CANDIDATE_GROUPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * stride
    tiles = tl.arange(0, TILES)
    is_tile = tiles < num_tiles
    tops = tl.load(tile_keys + row * num_tiles + tiles, mask=is_tile, other=NO_KEY)
    top = tl.max(tops)
    if not IS_RANDOM:
        token = _most_likely(row_logits, vocab_size, tops, top)
    else:
        row_temperature = tl.load(temperature + row)
        if (row_temperature == 0) | (not is_finite(top)):
            token = _most_likely(row_logits, vocab_size, tops, top)
        else:
            weights = tl.load(tile_weights + row * num_tiles + tiles, mask=is_tile, other=0)
            weights = row_weights(tops, weights, float_of(top), sharpness_of(row_temperature))
            fraction = tl.load(uniforms + row)
            if HAS_FILTERS:
                least_p, most, nucleus = (
                    tl.load(min_p + row),
                    tl.load(top_k + row),
                    tl.load(top_p + row),
                )
                if (least_p > 0) | (most > 0) | (nucleus < 1):
                    token = _draw_from_candidates(
                        row_logits,
                        vocab_size,
                        group_keys + row * num_groups,
                        num_groups,
                        candidates + row * CANDIDATE_GROUPS,
                        top,
                        tl.sum(weights),
                        row_temperature,
                        least_p,
                        most,
                        nucleus,
                        fraction,
                        GROUPS,
                        CANDIDATE_GROUPS,
                    )
                else:
                    token = _draw_from_all(
                        row_logits, vocab_size, tops, weights, row_temperature, fraction
                    )
            else:
                token = _draw_from_all(
                    row_logits, vocab_size, tops, weights, row_temperature, fraction
                )
    tl.store(token_ids + row, tl.where(is_finite(top), token, NO_TOKEN_ID))


@triton.jit
def _most_likely(row_logits, vocab_size, tile_tops, top):
    tokens = tile_tokens(tl.argmax(tile_tops, axis=0))
    numbers = tl.load(row_logits + tokens, mask=tokens < vocab_size, other=-float("inf"))
    is_top = (ordered_keys(numbers) == top) & (tokens < vocab_size)
    return tl.min(tl.where(is_top, tokens, vocab_size)).to(tl.int64)


@triton.jit
def _draw_from_all(row_logits, vocab_size, tile_tops, tile_weights, temperature, fraction):
    """Draw a tile by its weight, then a token by its weight in the tile."""
    share = share_of(fraction, tl.sum(tile_weights))
    tiles = tl.arange(0, tile_weights.shape[0])
    tile = tl.sum((tl.cumsum(tile_weights, 0) <= share).to(tl.int32))
    before = tl.sum(tl.where(tiles < tile, tile_weights, 0))
    weight = tl.sum(tl.where(tiles == tile, tile_weights, 0))
    top = tl.sum(tl.where(tiles == tile, tile_tops, 0))

    tokens = tile_tokens(tile)
    numbers = tl.load(row_logits + tokens, mask=tokens < vocab_size, other=-float("inf"))
    weights = fixed_weights(numbers, float_of(top), sharpness_of(temperature))
    fraction = (share - before).to(tl.float64) / weight.to(tl.float64)
    group, member = find_share(weights, share_of(fraction, tl.sum(weights)))
    return (tile * TILE + group * GROUP + member).to(tl.int64)


@triton.jit
def _draw_from_candidates(
    row_logits,
    vocab_size,
    row_group_keys,
    num_groups,
    row_candidates,
    top,
    total,
    temperature,
    min_p,
    top_k,
    top_p,
    fraction,
    GROUPS: tl.constexpr,
    CANDIDATE_GROUPS: tl.constexpr,
):
    """Draw from the groups with the greatest logits; UNRESOLVED if filters may keep other tokens.

    `total` is the weight of the row.
    """
    greatest = float_of(top)
    groups = tl.arange(0, GROUPS)
    group_tops = tl.load(row_group_keys + groups, mask=groups < num_groups, other=NO_KEY)
    floor = floor_key(greatest, temperature, min_p)
    least = least_cut(group_tops, CANDIDATE_GROUPS, tl.min(group_tops), top + 1)
    has_all = least <= floor
    least = tl.maximum(least, floor)

    # All tokens with keys from `least` on, in vocabulary order.
    is_candidate = group_tops >= least
    num_candidates = tl.sum(is_candidate.to(tl.int32))
    places = tl.cumsum(is_candidate.to(tl.int32), 0) - 1
    tl.store(row_candidates + places, groups, mask=is_candidate)
    tl.debug_barrier()
    numbers = tl.arange(0, CANDIDATE_GROUPS)
    ids = tl.load(row_candidates + numbers, mask=numbers < num_candidates, other=0)
    tokens = ids[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_token = (numbers < num_candidates)[:, None] & (tokens < vocab_size)
    logits = tl.load(row_logits + tokens, mask=is_token, other=-float("inf"))
    keys = tl.where(is_token, ordered_keys(logits), NO_KEY)
    weights = fixed_weights(logits, greatest, sharpness_of(temperature))
    weights = tl.where(keys >= least, weights, 0)
    held = tl.sum(weights)

    cut = least
    is_resolved = has_all
    total = tl.where(has_all, held, total)
    if top_k > 0:
        counts = (keys >= least).to(tl.int32)
        is_resolved |= tl.sum(counts) >= top_k
        cut = greatest_cut(keys, counts, top_k, least, top)
        total = tl.sum(tl.where(keys >= cut, weights, 0))
    if top_p < 1:
        target = nucleus_weight(top_p, total)
        is_resolved |= (top_k == 0) & (min_p == 0) & (held >= target)
        cut = greatest_cut(keys, weights, target, cut, top)

    kept = tl.where(keys >= cut, weights, 0)
    group, member = find_share(kept, share_of(fraction, tl.sum(kept)))
    token = tl.sum(tl.where(numbers == group, ids, 0)) * GROUP + member
    return tl.where(is_resolved, token, UNRESOLVED).to(tl.int64)
