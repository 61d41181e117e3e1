"""Writes a step's keys and values to the paged KV cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_FP8 = torch.float8_e4m3fn
_FP8_MAX = tl.constexpr(448.0)


def write_kv(
    key: Tensor,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    kv_slot_mapping: Tensor,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write one layer's keys and values of a step to their slots.

    Args:
        key: [num_tokens, num_kv_heads, key_dim]; a view of a fused projection is fine.
        value: likewise with value_dim; None for a latent entry, whose keys contain the values.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, dim of each]; in key's dtype,
            or float8_e4m3fn, which stores key / key_scale, clamped to its range.
        kv_slot_mapping: int64 [num_tokens], block * block_size + offset; a token with -1 is not
            stored.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    check_kv(key, value, key_cache, value_cache, kv_slot_mapping)
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
        1.0 / key_scale,
        1.0 / value_scale,
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
        IS_SCALED=key_cache.dtype == _FP8,
        num_warps=4,
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
        if cache.dtype not in (key.dtype, _FP8):
            raise ValueError(f"{name}_cache must be {key.dtype} or {_FP8}, not {cache.dtype}")
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
    IS_SCALED: tl.constexpr,
):
    """One program per token, all heads; key_token, ... value_cache_head are strides.

    VALUE_DIM is 0 where keys contain the values.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(kv_slot_mapping + token)
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    dims = tl.arange(0, PADDED_DIM)[None, :]
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    is_key = (heads < HEADS) & (dims < KEY_DIM)
    keys = tl.load(key + token * key_token + heads * key_head + dims, mask=is_key)
    if IS_SCALED:
        keys = within_fp8(keys, key_factor)
    keys_at = block * key_cache_block + offset * key_cache_token + heads * key_cache_head
    tl.store(
        key_cache + keys_at + dims, keys.to(key_cache.dtype.element_ty), mask=is_key & (slot >= 0)
    )
    if VALUE_DIM > 0:
        is_value = (heads < HEADS) & (dims < VALUE_DIM)
        values = tl.load(value + token * value_token + heads * value_head + dims, mask=is_value)
        if IS_SCALED:
            values = within_fp8(values, value_factor)
        values_at = block * value_cache_block + offset * value_cache_token
        values_at += heads * value_cache_head
        tl.store(
            value_cache + values_at + dims,
            values.to(value_cache.dtype.element_ty),
            mask=is_value & (slot >= 0),
        )


@triton.jit
def within_fp8(numbers, factor):
    """Scale, and clamp to the finite range of float8_e4m3fn; NaN stays NaN."""
    numbers = numbers.to(tl.float32) * factor
    numbers = tl.where(numbers > _FP8_MAX, _FP8_MAX, numbers)
    return tl.where(numbers < -_FP8_MAX, -_FP8_MAX, numbers)
