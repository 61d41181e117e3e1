"""Rotary position embedding, fused with the write of keys and values to the KV cache.

Reference: `taco_kernels.reference.rotary` (RoFormer, Su et al. 2021; halves as in GPT-NeoX).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.kv_write import check_kv, within_fp8

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Up to this many tokens a program takes few heads, so that there are more programs.
_FEW_TOKENS = 64


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
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Rotate each pair (x[i], x[i + rotary_dim / 2]) of all heads by its token's angles.

    The query is rotated in place. The rotated key and the value are written to the cache only;
    their sources stay unchanged.

    Args:
        query: [num_tokens, num_heads, head_dim]; the last stride must be 1.
        key, value: [num_tokens, num_kv_heads, head_dim], likewise.
        positions: int32 or int64 [num_tokens].
        cos_sin: float32 [max_positions, rotary_dim], cosines in the first half and sines in the
            second; numbers of a head from rotary_dim on stay unchanged.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim] of the key's dtype
            or float8_e4m3fn, which holds key / key_scale and value / value_scale, clamped to its
            range; the last stride must be 1.
        kv_slot_mapping: int64 [num_tokens], block * block_size + offset; -1 is not stored.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    _check_heads(query, key)
    check_kv(key, value, key_cache, value_cache, kv_slot_mapping)
    _check_angles(query, positions, cos_sin)
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads, half = key.shape[1], cos_sin.shape[1] // 2
    if num_tokens == 0:
        return
    half_block = triton.next_power_of_2(half)
    pairs, num_warps = (256, 1) if num_tokens <= _FEW_TOKENS else (1024, 4)
    heads = min(max(1, pairs // half_block), triton.next_power_of_2(num_heads))
    kv_parts = triton.cdiv(num_kv_heads, heads) * 2
    _rotate_kernel[(num_tokens, triton.cdiv(num_heads, heads) + kv_parts)](
        query,
        key,
        value,
        positions,
        cos_sin,
        key_cache,
        value_cache,
        kv_slot_mapping,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        1.0 / key_scale,
        1.0 / value_scale,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HALF=half,
        BLOCK_SIZE=key_cache.shape[1],
        IS_FP8=key_cache.dtype == torch.float8_e4m3fn,
        HEADS=heads,
        HALF_BLOCK=half_block,
        REST_BLOCK=triton.next_power_of_2(max(1, head_dim - 2 * half)),
        HEAD_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=num_warps,
    )


def _check_heads(query: Tensor, key: Tensor) -> None:
    for name, heads in (("query", query), ("key", key)):
        if (
            heads.dtype not in _DTYPES
            or heads.dim() != 3
            or heads.dtype != query.dtype
            or heads.shape[::2] != query.shape[::2]
            or heads.stride(2) != 1
        ):
            raise ValueError(
                f"{name} must be float16, bfloat16 or float32 [num_tokens, heads, head_dim] with "
                f"adjacent numbers, and like the query {query.dtype} {list(query.shape)}, not "
                f"{heads.dtype} {list(heads.shape)} with strides {heads.stride()}"
            )


def _check_angles(query: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    num_tokens, _, head_dim = query.shape
    if positions.dtype not in (torch.int32, torch.int64) or positions.shape != (num_tokens,):
        raise ValueError(
            f"positions must be int32 or int64 [{num_tokens}], not {positions.dtype} "
            f"{list(positions.shape)}"
        )
    if (
        cos_sin.dtype != torch.float32
        or cos_sin.dim() != 2
        or not 0 < cos_sin.shape[1] <= head_dim
        or cos_sin.shape[1] % 2
        or not cos_sin.is_contiguous()
        or not positions.is_contiguous()
    ):
        raise ValueError(
            f"cos_sin must be float32 [max_positions, rotary_dim], rotary_dim even and at most "
            f"{head_dim}, and contiguous as positions, not {cos_sin.dtype} {list(cos_sin.shape)}"
        )


@triton.jit
def _rotated(
    x,
    head_stride,
    heads,
    angles,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """Return both halves of some heads of one token, rotated and rounded to their dtype.

    Also their offsets in a head, and the mask of those that exist.
    """
    pairs = tl.arange(0, HALF_BLOCK)[None, :]
    mask = (heads < NUM_HEADS) & (pairs < HALF)
    cos = tl.load(angles + pairs, mask=pairs < HALF, other=0.0)
    sin = tl.load(angles + HALF + pairs, mask=pairs < HALF, other=0.0)
    firsts = x + heads * head_stride + pairs
    first = tl.load(firsts, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(firsts + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = x.dtype.element_ty
    turned_first = (first * cos - second * sin).to(dtype)
    turned_second = (second * cos + first * sin).to(dtype)
    return turned_first, turned_second, pairs, mask


@triton.jit
def _stored(x, factor, dtype: tl.constexpr, IS_FP8: tl.constexpr):
    if IS_FP8:
        x = within_fp8(x, factor)
    return x.to(dtype)


@triton.jit
def _copy_columns(
    x,
    head_stride,
    cache,
    cache_head,
    heads,
    factor,
    NUM_HEADS: tl.constexpr,
    START: tl.constexpr,
    END: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    """Copy columns START to END of some heads to the cache."""
    columns = START + tl.arange(0, BLOCK)[None, :]
    mask = (heads < NUM_HEADS) & (columns < END)
    copied = tl.load(x + heads * head_stride + columns, mask=mask, other=0.0)
    stored = _stored(copied, factor, cache.dtype.element_ty, IS_FP8)
    tl.store(cache + heads * cache_head + columns, stored, mask=mask)


@triton.jit
def _rotate_kernel(
    query,
    key,
    value,
    positions,
    cos_sin,
    key_cache,
    value_cache,
    kv_slot_mapping,
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
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    IS_FP8: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
):
    """One program per HEADS heads of a token: of the query, else the key, else the value."""
    QUERY_PARTS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    KEY_PARTS: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    query += token * query_token
    key += token * key_token
    value += token * value_token
    angles = cos_sin + tl.load(positions + token).to(tl.int64) * (2 * HALF)
    if part < QUERY_PARTS:
        heads = part * HEADS + tl.arange(0, HEADS)[:, None]
        first, second, pairs, mask = _rotated(
            query, query_head, heads, angles, NUM_HEADS, HALF, HALF_BLOCK
        )
        target = query + heads * query_head + pairs
        tl.store(target, first, mask=mask)
        tl.store(target + HALF, second, mask=mask)
    else:
        slot = tl.load(kv_slot_mapping + token)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        key_cache += block * key_cache_block + offset * key_cache_token
        value_cache += block * value_cache_block + offset * value_cache_token
        if slot < 0:
            pass
        elif part < QUERY_PARTS + KEY_PARTS:
            heads = (part - QUERY_PARTS) * HEADS + tl.arange(0, HEADS)[:, None]
            first, second, pairs, mask = _rotated(
                key, key_head, heads, angles, NUM_KV_HEADS, HALF, HALF_BLOCK
            )
            target = key_cache + heads * key_cache_head + pairs
            dtype: tl.constexpr = key_cache.dtype.element_ty
            tl.store(target, _stored(first, key_factor, dtype, IS_FP8), mask=mask)
            tl.store(target + HALF, _stored(second, key_factor, dtype, IS_FP8), mask=mask)
            if 2 * HALF < HEAD_DIM:
                _copy_columns(
                    key,
                    key_head,
                    key_cache,
                    key_cache_head,
                    heads,
                    key_factor,
                    NUM_KV_HEADS,
                    2 * HALF,
                    HEAD_DIM,
                    REST_BLOCK,
                    IS_FP8,
                )
        else:
            heads = (part - QUERY_PARTS - KEY_PARTS) * HEADS + tl.arange(0, HEADS)[:, None]
            _copy_columns(
                value,
                value_head,
                value_cache,
                value_cache_head,
                heads,
                value_factor,
                NUM_KV_HEADS,
                0,
                HEAD_DIM,
                HEAD_BLOCK,
                IS_FP8,
            )
