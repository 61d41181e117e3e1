"""Writes a step's keys and values to the paged KV cache.

A value that is not finite is stored as zeros, with a key of NaNs: attention multiplies the values
of tokens that a row must not see by 0, and 0 * NaN is NaN, but it masks their scores. A latent
entry stores such a value as it is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.kv_format import EIGHT_BIT_DTYPES, greatest

# A row of smaller numbers is stored as zeros: the factor to the stored numbers would not be finite.
_MIN_ROW = tl.constexpr(2.0**-100)
# A float32 sum with it has no digits behind the point; 1.5 * 2^23.
_WHOLE_NUMBERS = tl.constexpr(12582912.0)


def write_kv(
    key: Tensor,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_slot_mapping: Tensor,
    *,
    key_scale: float | Tensor = 1.0,
    value_scale: float | Tensor = 1.0,
) -> None:
    """Write one layer's keys and values of a step to their slots.

    Args:
        key: [num_tokens, num_kv_heads, key_dim]; a view of a fused projection is fine.
        value: likewise with value_dim; None for a latent entry, whose keys contain the values.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, dim of each]; in key's dtype,
            int8 or float8, which store key / key_scale, clamped to their range.
        kv_slot_mapping: int64 [num_tokens], block * block_size + offset; a token with -1 is not
            stored.
        key_scale, value_scale: as tensors, float32 [num_blocks, block_size, num_kv_heads] with
            equal strides: they get a scale for each token and head, with which its greatest number
            becomes the dtype's.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    check_kv(key, value, key_cache, value_cache, kv_slot_mapping)
    check_scales(key_cache, key_scale, value_scale)
    num_tokens, num_kv_heads, key_dim = key.shape
    if num_tokens == 0:
        return
    value_dim = 0 if value is None else value.shape[2]
    written = key if value is None else value
    _write_kv_kernel[(num_tokens,)](
        key,
        written,
        key_cache,
        value_cache,
        kv_slot_mapping,
        *scale_arguments(key_scale, value_scale),
        *key.stride()[:2],
        *written.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        BLOCK_SIZE=key_cache.shape[1],
        HEADS=num_kv_heads,
        PADDED_HEADS=triton.next_power_of_2(num_kv_heads),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        PADDED_DIM=triton.next_power_of_2(max(key_dim, value_dim)),
        LIMIT=limit_of(key_cache.dtype),
        num_warps=4,
    )


def limit_of(dtype: torch.dtype) -> float:
    """The greatest number of a cache of 8 bits; 0: the cache has no scales."""
    return greatest(dtype) if dtype in EIGHT_BIT_DTYPES else 0.0


def scale_arguments(
    key_scale: float | Tensor, value_scale: float | Tensor
) -> tuple[float, float, Tensor | None, Tensor | None, int, int]:
    """The kernels' arguments: factors to stored numbers, scales of tokens, strides of these."""
    if isinstance(key_scale, Tensor):
        assert isinstance(value_scale, Tensor)
        block, token = key_scale.stride()[:2]
        return 1.0, 1.0, key_scale, value_scale, block, token
    assert not isinstance(value_scale, Tensor)
    return 1.0 / key_scale, 1.0 / value_scale, None, None, 0, 0


def check_scales(key_cache: Tensor, key_scale: float | Tensor, value_scale: float | Tensor) -> None:
    """Raise ValueError unless the scales are two numbers, or alike and of the cache's tokens."""
    of_tokens = [scale for scale in (key_scale, value_scale) if isinstance(scale, Tensor)]
    if not of_tokens:
        return
    for scale in of_tokens:
        if (
            len(of_tokens) < 2
            or key_cache.dtype not in EIGHT_BIT_DTYPES
            or scale.dtype != torch.float32
            or scale.shape != key_cache.shape[:3]
            or scale.stride() != of_tokens[0].stride()
            or scale.stride(-1) != 1
        ):
            raise ValueError(
                "the scales of tokens must be two of float32 "
                f"{list(key_cache.shape[:3])} with equal strides, for a cache of 8 bits, not "
                f"{scale.dtype} {list(scale.shape)} for one of {key_cache.dtype}"
            )


def check_kv(
    key: Tensor,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_slot_mapping: Tensor,
) -> None:
    """Raise ValueError unless keys, values and cache have matching shapes, dtypes and strides."""
    written = [("key", key, key_cache)]
    if value is not None:
        written.append(("value", value, value_cache))
        if value.shape[:-1] != key.shape[:-1] or value.dtype != key.dtype:
            raise ValueError(
                f"key and value must have the same tokens, heads and dtype, not {key.dtype} "
                f"{list(key.shape)} and {value.dtype} {list(value.shape)}"
            )
    for name, rows, cache in written:
        if rows.dim() != 3:
            raise ValueError(
                f"{name} must be [num_tokens, num_kv_heads, dim], not {list(rows.shape)}"
            )
        if cache.dim() != 4 or cache.shape[2:] != rows.shape[1:]:
            raise ValueError(
                f"{name}_cache must be [num_blocks, block_size, {rows.shape[1]}, {rows.shape[2]}], "
                f"not {list(cache.shape)}"
            )
        if cache.dtype not in (key.dtype, *EIGHT_BIT_DTYPES):
            raise ValueError(f"{name}_cache must be {key.dtype} or of 8 bits, not {cache.dtype}")
        if rows.stride(-1) != 1:
            raise ValueError("the numbers of a head must be adjacent")
    if key_cache.shape[:3] != value_cache.shape[:3] or key_cache.dtype != value_cache.dtype:
        raise ValueError("key_cache and value_cache must be of the same blocks, heads and dtype")
    if any(x.stride(-1) != 1 for x in (key_cache, value_cache)):
        raise ValueError("the numbers of a head must be adjacent")
    if (
        kv_slot_mapping.dtype != torch.int64
        or kv_slot_mapping.shape != key.shape[:1]
        or not kv_slot_mapping.is_contiguous()
    ):
        raise ValueError(
            f"kv_slot_mapping must be contiguous int64 [{key.shape[0]}], not "
            f"{kv_slot_mapping.dtype} {list(kv_slot_mapping.shape)}"
        )


@triton.jit
def _write_kv_kernel(
    key,
    value,
    key_cache,
    value_cache,
    kv_slot_mapping,
    key_factor,
    value_factor,
    key_scales,
    value_scales,
    scale_block,
    scale_token,
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
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """One program per token, all heads; scale_block, ... value_cache_head are strides.

    VALUE_DIM is 0 where keys contain the values. LIMIT: of `limit_of`.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(kv_slot_mapping + token)
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    dims = tl.arange(0, PADDED_DIM)[None, :]
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    is_key = (heads < HEADS) & (dims < KEY_DIM)
    scales_at = block * scale_block + offset * scale_token + heads
    has_slot = (heads < HEADS) & (slot >= 0)
    keys = tl.load(key + token * key_token + heads * key_head + dims, mask=is_key, other=0.0)
    if VALUE_DIM > 0:
        is_value = (heads < HEADS) & (dims < VALUE_DIM)
        values = tl.load(
            value + token * value_token + heads * value_head + dims, mask=is_value, other=0.0
        )
        is_stored = are_finite(values, LIMIT > 0 and value_scales is None)
        keys = tl.where(is_stored, keys, float("nan"))
        values = tl.where(is_stored, values, 0.0)
    if LIMIT > 0:
        if key_scales is not None:
            largest = largest_of(keys)
            key_factor = factor_of(largest, LIMIT)
            tl.store(key_scales + scales_at, scale_of(largest, LIMIT), mask=has_slot)
        keys = quantized(keys, key_factor, LIMIT, key_cache.dtype.element_ty)
    keys_at = block * key_cache_block + offset * key_cache_token + heads * key_cache_head
    tl.store(
        key_cache + keys_at + dims, keys.to(key_cache.dtype.element_ty), mask=is_key & (slot >= 0)
    )
    if VALUE_DIM > 0:
        if LIMIT > 0:
            if value_scales is not None:
                largest = largest_of(values)
                value_factor = factor_of(largest, LIMIT)
                tl.store(value_scales + scales_at, scale_of(largest, LIMIT), mask=has_slot)
            values = quantized(values, value_factor, LIMIT, value_cache.dtype.element_ty)
        values_at = block * value_cache_block + offset * value_cache_token
        values_at += heads * value_cache_head
        tl.store(
            value_cache + values_at + dims,
            values.to(value_cache.dtype.element_ty),
            mask=is_value & (slot >= 0),
        )


@triton.jit
def are_finite(values, IS_CLAMPED: tl.constexpr):
    """Which rows are stored as finite numbers, [rows, 1]. IS_CLAMPED: infinities are."""
    sizes = tl.abs(values.to(tl.float32))
    is_finite = sizes == sizes if IS_CLAMPED else sizes < float("inf")
    return tl.min(is_finite.to(tl.int32), 1)[:, None] > 0


@triton.jit
def largest_of(numbers):
    """The greatest absolute number of each row, [rows, 1]; NaN if a number is."""
    sizes = tl.abs(numbers.to(tl.float32))
    has_nan = tl.max((sizes != sizes).to(tl.int32), 1) > 0
    return tl.where(has_nan, float("nan"), tl.max(sizes, 1))[:, None]


@triton.jit
def factor_of(largest, LIMIT: tl.constexpr):
    """The factor to stored numbers of rows with these largest numbers."""
    is_zero = largest < _MIN_ROW
    return tl.where(is_zero, 0.0, LIMIT / tl.where(is_zero, 1.0, largest))


@triton.jit
def scale_of(largest, LIMIT: tl.constexpr):
    """The scale of rows with these largest numbers."""
    return tl.where(largest < _MIN_ROW, 0.0, largest / LIMIT)


@triton.jit
def quantized(numbers, factor, LIMIT: tl.constexpr, dtype: tl.constexpr):
    """Scale, clamp to [-LIMIT, LIMIT] and round to nearest; NaN stays NaN in float8."""
    numbers = numbers.to(tl.float32) * factor
    numbers = tl.where(numbers > LIMIT, LIMIT, numbers)
    numbers = tl.where(numbers < -LIMIT, -LIMIT, numbers)
    if dtype == tl.int8:
        numbers = (numbers + _WHOLE_NUMBERS) - _WHOLE_NUMBERS
    return numbers.to(dtype)
