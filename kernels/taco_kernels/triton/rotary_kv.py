"""Rotary position embedding, fused with the write of keys and values to the KV cache.

Reference: `taco_kernels.reference.rotary` (RoFormer, Su et al. 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.reference.rotary import RotaryStyle
from taco_kernels.triton.kv_write import (
    are_finite,
    check_kv,
    check_scales,
    factor_of,
    largest_of,
    limit_of,
    quantized,
    scale_arguments,
    scale_of,
)
from taco_kernels.triton.rotary import (
    check_angles,
    check_heads,
    heads_per_program,
    pair_options,
    rotated,
)


def rotate_and_write_kv(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_slot_mapping: Tensor,
    *,
    offset: int = 0,
    style: RotaryStyle = "half",
    sections: Sequence[int] = (),
    key_scale: float | Tensor = 1.0,
    value_scale: float | Tensor = 1.0,
) -> None:
    """Rotate `rotary_dim` numbers of each head, from `offset` on, by its token's angles.

    The query is rotated in place. The rotated key and the value are written to the cache only;
    their sources stay unchanged.

    Args:
        query: [num_tokens, num_heads, head_dim]; the last stride must be 1.
        key, value: [num_tokens, num_kv_heads, head_dim], likewise.
        positions, cos_sin, offset, style, sections: as in `rotary.rotate`; the other numbers of a
            head stay unchanged.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim] of the key's dtype
            or of 8 bits, which hold key / key_scale and value / value_scale, clamped to their
            range; the last stride must be 1.
        kv_slot_mapping: int64 [num_tokens], block * block_size + offset; -1 is not stored.
        key_scale, value_scale: as in `kv_write.write_kv`.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    for name, heads_of in (("query", query), ("key", key)):
        check_heads(name, heads_of, query)
    check_kv(key, value, key_cache, value_cache, kv_slot_mapping)
    check_scales(key_cache, key_scale, value_scale)
    if value.shape != key.shape:
        raise ValueError(
            f"values must have the keys' shape {list(key.shape)}, not {list(value.shape)}"
        )
    check_angles(query, positions, cos_sin, offset, style, sections)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, rotary_dim = key.shape[1], cos_sin.shape[1]
    if num_tokens == 0:
        return
    heads, num_warps = heads_per_program(num_tokens, num_heads, rotary_dim // 2)
    kv_parts = triton.cdiv(num_kv_heads, heads) * 2
    _rotate_and_write_kernel[(num_tokens, triton.cdiv(num_heads, heads) + kv_parts)](
        query,
        key,
        value,
        positions,
        cos_sin,
        key_cache,
        value_cache,
        kv_slot_mapping,
        positions.stride(0),
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *scale_arguments(key_scale, value_scale),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        VALUE_DIM=value.shape[2],
        BLOCK_SIZE=key_cache.shape[1],
        LIMIT=limit_of(key_cache.dtype),
        HEADS=heads,
        FRONT_BLOCK=triton.next_power_of_2(max(1, offset)),
        REST_BLOCK=triton.next_power_of_2(max(1, head_dim - offset - rotary_dim)),
        VALUE_BLOCK=triton.next_power_of_2(value.shape[2]),
        **pair_options(cos_sin, offset, style, sections),
        num_warps=num_warps,
    )


@triton.jit
def _stored(x, factor, dtype: tl.constexpr, LIMIT: tl.constexpr):
    if LIMIT > 0:
        x = quantized(x, factor, LIMIT, dtype)
    return x.to(dtype)


@triton.jit
def _load_columns(
    x,
    head_stride,
    heads,
    NUM_HEADS: tl.constexpr,
    START: tl.constexpr,
    END: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Columns START to END of some heads, their offsets in a head, and the mask of those there."""
    columns = START + tl.arange(0, BLOCK)[None, :]
    mask = (heads < NUM_HEADS) & (columns < END)
    return tl.load(x + heads * head_stride + columns, mask=mask, other=0.0), columns, mask


@triton.jit
def _largest(x, mask):
    """The greatest absolute number of each row, [rows, 1]; NaN if a number is."""
    return largest_of(tl.where(mask, x, 0.0))


@triton.jit
def _greater(one, other):
    """The greater one, or NaN if either is."""
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["positions_axis"])
def _rotate_and_write_kernel(
    query,
    key,
    value,
    positions,
    cos_sin,
    key_cache,
    value_cache,
    kv_slot_mapping,
    positions_axis,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    key_cache_block,
    key_cache_token,
    key_cache_head,
    value_cache_block,
    value_cache_token,
    value_cache_head,
    key_factor,
    value_factor,
    key_scales,
    value_scales,
    scale_block,
    scale_token,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LIMIT: tl.constexpr,
    HEADS: tl.constexpr,
    FRONT_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    OFFSET: tl.constexpr,
    STEP: tl.constexpr,
    DISTANCE: tl.constexpr,
    NUM_AXES: tl.constexpr,
    FIRST_END: tl.constexpr,
    SECOND_END: tl.constexpr,
):
    """One program per HEADS heads of a token: of the query, else the key, else the value."""
    QUERY_PARTS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    KEY_PARTS: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query += token * query_token
    key += token * key_token
    value += token * value_token
    positions += token
    if part < QUERY_PARTS:
        heads = part * HEADS + tl.arange(0, HEADS)[:, None]
        first, second, places, mask = rotated(
            query,
            query_head,
            heads,
            positions,
            positions_axis,
            cos_sin,
            NUM_HEADS,
            HALF,
            HALF_BLOCK,
            OFFSET,
            STEP,
            DISTANCE,
            NUM_AXES,
            FIRST_END,
            SECOND_END,
        )
        target = query + heads * query_head + places
        tl.store(target, first, mask=mask)
        tl.store(target + DISTANCE, second, mask=mask)
    else:
        slot = tl.load(kv_slot_mapping + token)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        key_cache += block * key_cache_block + offset * key_cache_token
        value_cache += block * value_cache_block + offset * value_cache_token
        if slot < 0:
            pass
        elif part < QUERY_PARTS + KEY_PARTS:
            heads = (part - QUERY_PARTS) * HEADS + tl.arange(0, HEADS)[:, None]
            first, second, places, mask = rotated(
                key,
                key_head,
                heads,
                positions,
                positions_axis,
                cos_sin,
                NUM_KV_HEADS,
                HALF,
                HALF_BLOCK,
                OFFSET,
                STEP,
                DISTANCE,
                NUM_AXES,
                FIRST_END,
                SECOND_END,
            )
            if OFFSET > 0:
                front, front_at, in_front = _load_columns(
                    key, key_head, heads, NUM_KV_HEADS, 0, OFFSET, FRONT_BLOCK
                )
            if OFFSET + 2 * HALF < HEAD_DIM:
                rest, rest_at, in_rest = _load_columns(
                    key, key_head, heads, NUM_KV_HEADS, OFFSET + 2 * HALF, HEAD_DIM, REST_BLOCK
                )
            values, _, _ = _load_columns(
                value, value_head, heads, NUM_KV_HEADS, 0, VALUE_DIM, VALUE_BLOCK
            )
            is_stored = are_finite(values, LIMIT > 0 and value_scales is None)
            first = tl.where(is_stored, first, float("nan"))
            second = tl.where(is_stored, second, float("nan"))
            if OFFSET > 0:
                front = tl.where(is_stored, front, float("nan"))
            if OFFSET + 2 * HALF < HEAD_DIM:
                rest = tl.where(is_stored, rest, float("nan"))
            if key_scales is not None:
                largest = _greater(_largest(first, mask), _largest(second, mask))
                if OFFSET > 0:
                    largest = _greater(largest, _largest(front, in_front))
                if OFFSET + 2 * HALF < HEAD_DIM:
                    largest = _greater(largest, _largest(rest, in_rest))
                key_factor = factor_of(largest, LIMIT)
                scales_at = key_scales + block * scale_block + offset * scale_token + heads
                tl.store(scales_at, scale_of(largest, LIMIT), mask=heads < NUM_KV_HEADS)
            target = key_cache + heads * key_cache_head
            dtype: tl.constexpr = key_cache.dtype.element_ty
            tl.store(target + places, _stored(first, key_factor, dtype, LIMIT), mask=mask)
            second = _stored(second, key_factor, dtype, LIMIT)
            tl.store(target + places + DISTANCE, second, mask=mask)
            if OFFSET > 0:
                front = _stored(front, key_factor, dtype, LIMIT)
                tl.store(target + front_at, front, mask=in_front)
            if OFFSET + 2 * HALF < HEAD_DIM:
                rest = _stored(rest, key_factor, dtype, LIMIT)
                tl.store(target + rest_at, rest, mask=in_rest)
        else:
            heads = (part - QUERY_PARTS - KEY_PARTS) * HEADS + tl.arange(0, HEADS)[:, None]
            values, values_at, in_value = _load_columns(
                value, value_head, heads, NUM_KV_HEADS, 0, VALUE_DIM, VALUE_BLOCK
            )
            is_stored = are_finite(values, LIMIT > 0 and value_scales is None)
            values = tl.where(is_stored, values, 0.0)
            if value_scales is not None:
                largest = _largest(values, in_value)
                value_factor = factor_of(largest, LIMIT)
                scales_at = value_scales + block * scale_block + offset * scale_token + heads
                tl.store(scales_at, scale_of(largest, LIMIT), mask=heads < NUM_KV_HEADS)
            stored = _stored(values, value_factor, value_cache.dtype.element_ty, LIMIT)
            tl.store(value_cache + heads * value_cache_head + values_at, stored, mask=in_value)
