"""Samples rows whose filters keep more tokens than one program can hold in registers.

One program per row reads it twice if its guess is right. A sample of the row gives bounds of the
cut. One pass adds up the tokens above the bounds, exactly, and collects those between, among which
the cut is found in registers. Another pass weighs the kept tokens. If the guess is wrong, or too
many tokens tie, the program halves the range and reads again.

Such rows are flat: of high temperatures or untrained models. One multiprocessor reads a row at a
tenth of a terabyte per second. More launches could speed up such a row, but every batch with
filters would pay for them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.row_statistics import (
    GROUP,
    NO_KEY,
    UNIT,
    RowStatistics,
    fixed_weights,
    float_of,
    floor_key,
    ordered_keys,
    row_weights,
    sharpness_of,
)
from taco_kernels.triton.top_k_top_p_threshold import (
    find_share,
    greatest_cut,
    nucleus_weight,
    share_of,
)

# Token id of a row that is left to this kernel; differs from NO_TOKEN.
UNRESOLVED = tl.constexpr(-2)

_CHUNK = tl.constexpr(4096)
_STAGES = tl.constexpr(3)  # chunks in flight
# Room for keys between the guessed bounds: few flat rows of 150,000 tokens have more.
_ROOM = tl.constexpr(8192)
_SAMPLE = tl.constexpr(4096)
_RUN = tl.constexpr(8)  # adjacent tokens of a sample, one sector of memory
_DEVIATIONS = tl.constexpr(3.0)


def sample_wide(
    logits: Tensor,
    statistics: RowStatistics,
    temperature: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    uniforms: Tensor,
    token_ids: Tensor,
) -> None:
    """Set token_ids (int64 [num_rows]) of rows that are UNRESOLVED; these have filters.

    `statistics` must have weights.
    """
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    room = torch.empty((num_rows, _ROOM.value), dtype=torch.int32, device=logits.device)
    _sample_wide_kernel[(num_rows,)](
        logits,
        logits.stride(0),
        vocab_size,
        statistics.num_tiles,
        temperature,
        min_p,
        top_k,
        top_p,
        uniforms,
        statistics.tile_keys,
        statistics.tile_weights,
        room,
        token_ids,
        TILES=triton.next_power_of_2(statistics.num_tiles),
        CHUNKS=triton.next_power_of_2(triton.cdiv(vocab_size, _CHUNK.value)),
        num_warps=16,
    )


@triton.jit
def _sample_wide_kernel(
    logits,
    stride,
    vocab_size,
    num_tiles,
    temperature,
    min_p,
    top_k,
    top_p,
    uniforms,
    tile_keys,
    tile_weights,
    room,
    token_ids,
    TILES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(token_ids + row) == UNRESOLVED:
        row_logits, row_room = logits + row * stride, room + row * _ROOM
        tiles = tl.arange(0, TILES)
        is_tile = tiles < num_tiles
        tops = tl.load(tile_keys + row * num_tiles + tiles, mask=is_tile, other=NO_KEY)
        top = tl.max(tops)
        row_temperature = tl.load(temperature + row)
        greatest, sharpness = float_of(top), sharpness_of(row_temperature)
        least_p, most = tl.load(min_p + row), tl.load(top_k + row)
        cut = floor_key(greatest, row_temperature, least_p)
        if most > 0:
            count = tl.full([], vocab_size, tl.int64)
            cut = _find_cut(
                row_logits, vocab_size, greatest, sharpness, row_room,
                most.to(tl.int64), count, cut, top, False,
            )  # fmt: skip
        nucleus = tl.load(top_p + row)
        if nucleus < 1:
            if (most > 0) | (least_p > 0):
                total = _weight_from(row_logits, vocab_size, greatest, sharpness, cut)
            else:
                weights = tl.load(tile_weights + row * num_tiles + tiles, mask=is_tile, other=0)
                total = tl.sum(row_weights(tops, weights, greatest, sharpness))
            cut = _find_cut(
                row_logits, vocab_size, greatest, sharpness, row_room,
                nucleus_weight(nucleus, total), total, cut, top, True,
            )  # fmt: skip
        fraction = tl.load(uniforms + row)
        token = _draw(row_logits, vocab_size, greatest, sharpness, cut, fraction, CHUNKS)
        tl.store(token_ids + row, token.to(tl.int64))


@triton.jit
def _find_cut(
    row_logits,
    vocab_size,
    greatest,
    sharpness,
    room,
    target,
    total,
    floor,
    top,
    IS_WEIGHT: tl.constexpr,
):
    """Find the greatest cut from `floor` to `top` that keeps `target`, or else `floor`.

    Args:
        room: int32 [_ROOM], for keys.
        target, total: int64, numbers of tokens, or weights with IS_WEIGHT; `total` is approximately
            the amount that `floor` keeps.
    """
    # The cut lies in [low, high); `above`, the amount from `high` on, is not enough. A pass reads
    # [first, behind).
    low, high = floor, top + 1
    first, behind = _guess(
        row_logits, vocab_size, greatest, sharpness, target, total, floor, top, IS_WEIGHT
    )
    above = tl.full([], 0, tl.int64)
    num_collected = tl.full([], _ROOM + 1, tl.int32)
    while (low + 1 < high) & (num_collected > _ROOM):
        beyond, inside, num_inside = _collect(
            row_logits, vocab_size, greatest, sharpness, room, first, behind, IS_WEIGHT
        )
        is_beyond = beyond >= target
        is_before = beyond + inside < target
        is_inside = (beyond < target) & (beyond + inside >= target)
        above = tl.where(is_before, beyond + inside, tl.where(is_inside, beyond, above))
        low = tl.where(is_beyond, behind, tl.where(is_inside, first, low))
        high = tl.where(is_before, first, tl.where(is_inside, behind, high))
        num_collected = tl.where(is_inside, num_inside, _ROOM + 1)
        first = low
        behind = (low | high) - ((low ^ high) >> 1)

    cut = low
    if num_collected <= _ROOM:
        places = tl.arange(0, _ROOM)
        keys = tl.load(room + places, mask=places < num_collected, other=NO_KEY)
        if IS_WEIGHT:
            amounts = fixed_weights(float_of(keys), greatest, sharpness)
        else:
            amounts = (keys > NO_KEY).to(tl.int64)
        cut = greatest_cut(keys, amounts, target - above, low, high - 1)
    tl.debug_barrier()
    return cut


@triton.jit
def _guess(
    row_logits,
    vocab_size,
    greatest,
    sharpness,
    target,
    total,
    floor,
    top,
    IS_WEIGHT: tl.constexpr,
):
    """Bounds of the cut, which hold if the sample is representative of the row."""
    runs = tl.arange(0, _SAMPLE // _RUN)
    starts = (runs.to(tl.int64) * vocab_size // (_SAMPLE // _RUN)).to(tl.int32)
    tokens = starts[:, None] + tl.arange(0, _RUN)[None, :]
    numbers, keys = _load(row_logits, tokens, vocab_size)
    part = 1.0 / tl.full([], vocab_size, tl.float64) * _SAMPLE
    if IS_WEIGHT:
        amounts = tl.where(keys >= floor, fixed_weights(numbers, greatest, sharpness), 0)
        # A sample estimates the many light tokens that a nucleus drops better than the heavy ones
        # that it keeps.
        goal = tl.sum(amounts).to(tl.float64) - (total - target).to(tl.float64) * part
        middle = greatest_cut(keys, amounts, tl.maximum(goal, 1.0).to(tl.int64), floor, top)
        left_out = tl.where(keys < middle, amounts, 0).to(tl.float32) / UNIT
        slack = tl.sqrt(tl.sum(left_out * left_out)) * (UNIT * _DEVIATIONS)
    else:
        amounts = (keys >= floor).to(tl.int64)
        goal = target.to(tl.float64) * part
        slack = (tl.sqrt(goal.to(tl.float32)) + 1) * _DEVIATIONS
    most = (goal + slack).to(tl.int64) + 1
    least = (goal - slack).to(tl.int64)
    first = greatest_cut(keys, amounts, most, floor, top)
    behind = tl.where(least > 0, greatest_cut(keys, amounts, least, first, top), top) + 1
    return first, behind


@triton.jit
def _collect(
    row_logits,
    vocab_size,
    greatest,
    sharpness,
    room,
    first,
    behind,
    IS_WEIGHT: tl.constexpr,
):
    """Sum the amounts of keys from `behind` on and in [first, behind), and collect the latter.

    As many as fit are stored in `room`; their number is returned too.
    """
    beyond = tl.full([], 0, tl.int64)
    inside = tl.full([], 0, tl.int64)
    num_inside = tl.full([], 0, tl.int32)
    for start in tl.range(0, vocab_size, _CHUNK, num_stages=_STAGES):
        numbers, keys = _load(row_logits, start + tl.arange(0, _CHUNK), vocab_size)
        is_inside = (keys >= first) & (keys < behind)
        places = num_inside + tl.cumsum(is_inside.to(tl.int32), 0) - 1
        tl.store(room + places, keys, mask=is_inside & (places < _ROOM))
        num_inside += tl.sum(is_inside.to(tl.int32))
        if IS_WEIGHT:
            weights = fixed_weights(numbers, greatest, sharpness)
            beyond += tl.sum(tl.where(keys >= behind, weights, 0))
            inside += tl.sum(tl.where(is_inside, weights, 0))
        else:
            beyond += tl.sum((keys >= behind).to(tl.int32))
    if not IS_WEIGHT:
        inside += num_inside
    tl.debug_barrier()
    return beyond, inside, num_inside


@triton.jit
def _weight_from(row_logits, vocab_size, greatest, sharpness, cut):
    """The weight of the tokens that a cut keeps."""
    weight = tl.full([], 0, tl.int64)
    for start in tl.range(0, vocab_size, _CHUNK, num_stages=_STAGES):
        weight += tl.sum(_kept(row_logits, start, vocab_size, greatest, sharpness, cut))
    return weight


@triton.jit
def _draw(row_logits, vocab_size, greatest, sharpness, cut, fraction, CHUNKS: tl.constexpr):
    chunks = tl.arange(0, CHUNKS)
    weights = tl.full([CHUNKS], 0, tl.int64)
    for start in tl.range(0, vocab_size, _CHUNK, num_stages=_STAGES):
        weight = tl.sum(_kept(row_logits, start, vocab_size, greatest, sharpness, cut))
        weights = tl.where(chunks == start // _CHUNK, weight, weights)
    share = share_of(fraction, tl.sum(weights))
    chunk = tl.sum((tl.cumsum(weights, 0) <= share).to(tl.int32))
    before = tl.sum(tl.where(chunks < chunk, weights, 0))
    kept = _kept(row_logits, chunk * _CHUNK, vocab_size, greatest, sharpness, cut)
    group, member = find_share(kept, share - before)
    return chunk * _CHUNK + group * GROUP + member


@triton.jit
def _kept(row_logits, start, vocab_size, greatest, sharpness, cut):
    """Weights of a chunk's tokens that a cut keeps, [groups, members]; 0 for the others."""
    groups = tl.arange(0, _CHUNK // GROUP)[:, None]
    tokens = start + groups * GROUP + tl.arange(0, GROUP)[None, :]
    numbers, keys = _load(row_logits, tokens, vocab_size)
    return tl.where(keys >= cut, fixed_weights(numbers, greatest, sharpness), 0)


@triton.jit
def _load(row_logits, tokens, vocab_size):
    """Load logits and their keys."""
    numbers = tl.load(row_logits + tokens, mask=tokens < vocab_size, other=-float("inf"))
    return numbers, tl.where(tokens < vocab_size, ordered_keys(numbers), NO_KEY)
