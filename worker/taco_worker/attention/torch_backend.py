"""Attention over paged KV in plain torch: runs on every device; the reference, not the fastest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.step_plans import StepPlans, first_seen, indexable, upload_indices


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence with several query tokens.

    Attributes:
        tokens: its rows of the query.
        blocks: [num_blocks], the blocks that its tokens can see.
        kv: the visible range of those blocks' tokens.
        mask: [query_len, kv_len], true where a token is visible; None for plain causal.
    """

    tokens: slice
    blocks: Tensor
    kv: slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one query token each and KV of similar length.

    Attributes:
        rows: [num_rows], their rows of the query.
        blocks: [num_rows, num_blocks], the visible blocks, padded to a common number.
        seen: [num_rows, num_blocks * block_size], true where a token is visible.
        unseen: the invisible tokens, as indices into all rows' tokens concatenated.
    """

    rows: Tensor
    blocks: Tensor
    seen: Tensor
    unseen: Tensor


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    prefills: list[_Prefill]
    decode_groups: list[_DecodeGroup]


class TorchAttention:
    """Runs prefills one sequence at a time and decodes in groups of equal padding.

    A group's padding depends on each sequence's own length, never on its neighbours. Padding is
    zeroed before use, so that no infinity of a stale block can leak.
    """

    supports_trees = True

    def __init__(self) -> None:
        self._plans: StepPlans[_BatchPlan] = StepPlans()

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        layer: int,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        plan = self._plans.get(
            metadata,
            sliding_window,
            lambda: _plan_batch(metadata, kv_cache.block_size, sliding_window),
        )
        keys, values = kv_cache.key(layer), kv_cache.value(layer)
        output = torch.empty_like(query)
        for prefill in plan.prefills:
            output[prefill.tokens] = _prefill(query[prefill.tokens], keys, values, prefill, scale)
        for group in plan.decode_groups:
            output[group.rows] = _decode(query[group.rows], keys, values, group, scale)
        return output


def _plan_batch(
    metadata: AttentionMetadata, block_size: int, sliding_window: int | None
) -> _BatchPlan:
    prefills: list[_Prefill] = []
    decodes: dict[int, list[tuple[int, int]]] = {}
    row = 0
    for sequence, query_len in enumerate(metadata.query_lens_host):
        seq_len = metadata.seq_lens_host[sequence]
        if query_len == 1:
            first = first_seen(seq_len - 1, sliding_window) // block_size
            num_blocks = -(-seq_len // block_size) - first
            decodes.setdefault(_padded(num_blocks), []).append((sequence, row))
        elif query_len > 1:
            prefills.append(
                _plan_prefill(
                    metadata, sequence, slice(row, row + query_len), block_size, sliding_window
                )
            )
        row += query_len
    groups = [
        _plan_decode_group(members, metadata, padded, block_size, sliding_window)
        for padded, members in decodes.items()
    ]
    return _BatchPlan(prefills, groups)


def _padded(num_blocks: int) -> int:
    """Round up to the next of four sizes per octave: little padding, few groups."""
    step = 1 << max(0, num_blocks.bit_length() - 3)
    return -(-num_blocks // step) * step


def _plan_prefill(
    metadata: AttentionMetadata,
    sequence: int,
    tokens: slice,
    block_size: int,
    sliding_window: int | None,
) -> _Prefill:
    query_len, seq_len = tokens.stop - tokens.start, metadata.seq_lens_host[sequence]
    first = first_seen(seq_len - query_len, sliding_window)
    first_block, last_block = first // block_size, -(-seq_len // block_size)
    return _Prefill(
        tokens=tokens,
        blocks=metadata.block_tables[sequence, first_block:last_block],
        kv=slice(first - first_block * block_size, seq_len - first_block * block_size),
        mask=_prefill_mask(metadata, tokens, first, seq_len, sliding_window),
    )


def _prefill_mask(
    metadata: AttentionMetadata,
    tokens: slice,
    first: int,
    seq_len: int,
    sliding_window: int | None,
) -> Tensor | None:
    """The mask of one sequence's tokens over its KV from `first` on; see `_Prefill`."""
    query_len = tokens.stop - tokens.start
    context_len, tree = seq_len - query_len, metadata.tree
    is_windowed = sliding_window is not None and sliding_window < seq_len
    if tree is None and context_len == 0 and not is_windowed:
        return None
    device = metadata.block_tables.device
    places = torch.arange(first, seq_len, device=device)
    rows = torch.arange(context_len, seq_len, device=device).unsqueeze(1)
    mask = places <= rows
    query_positions, kv_positions = rows, places
    if tree is not None:
        masks = tree.masks[tokens].unsqueeze(1)
        bits = (masks >> torch.arange(query_len, device=device).clamp(max=63)) & 1
        mask[:, context_len - first :] &= (masks == -1) | (bits == 1)
        query_positions = tree.positions[tokens].unsqueeze(1)
        kv_positions = torch.cat([places[: context_len - first], tree.positions[tokens]])
    if sliding_window is not None:
        mask &= kv_positions > query_positions - sliding_window
    return mask


def _plan_decode_group(
    members: list[tuple[int, int]],
    metadata: AttentionMetadata,
    num_blocks: int,
    block_size: int,
    sliding_window: int | None,
) -> _DecodeGroup:
    device = metadata.block_tables.device
    sequences, rows = np.array(members).T
    seq_lens = np.array(metadata.seq_lens_host)[sequences, None]
    first_seens = np.zeros_like(seq_lens)
    if sliding_window is not None:
        first_seens = np.maximum(0, seq_lens - sliding_window)
    first_blocks = first_seens // block_size

    # Table entries past the last block are undefined: gather the last block again instead.
    columns = np.minimum(first_blocks + np.arange(num_blocks), (seq_lens - 1) // block_size)
    positions = first_blocks * block_size + np.arange(num_blocks * block_size)
    seen = (positions >= first_seens) & (positions < seq_lens)
    return _DecodeGroup(
        rows=upload_indices(rows, device),
        blocks=metadata.block_tables[
            upload_indices(sequences[:, None], device), upload_indices(columns, device)
        ],
        seen=torch.from_numpy(seen).to(device, non_blocking=True),
        unseen=upload_indices(np.flatnonzero(~seen), device),
    )


def _gather(cache: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """All tokens of some blocks, [num_tokens, num_kv_heads, head_dim]."""
    gathered = indexable(cache).index_select(0, blocks).view(cache.dtype)
    return gathered.to(dtype).flatten(0, 1)


def _prefill(query: Tensor, keys: Tensor, values: Tensor, plan: _Prefill, scale: float) -> Tensor:
    """query [query_len, num_heads, head_dim] to the same shape."""
    query_len, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[2]
    group_size = num_heads // num_kv_heads

    def per_query_head(cache: Tensor) -> Tensor:
        """[num_kv_heads, group_size, kv_len, head_dim], each KV head repeated as a view."""
        rows = _gather(cache, plan.blocks, query.dtype)[plan.kv]
        return rows.transpose(0, 1).unsqueeze(1).expand(-1, group_size, -1, -1)

    output = F.scaled_dot_product_attention(
        query.view(query_len, num_kv_heads, group_size, head_dim).permute(1, 2, 0, 3),
        per_query_head(keys),
        per_query_head(values),
        attn_mask=plan.mask,
        is_causal=plan.mask is None,
        scale=scale,
    )
    return output.permute(2, 0, 1, 3).reshape(query_len, num_heads, head_dim)


def _decode(
    query: Tensor, keys: Tensor, values: Tensor, group: _DecodeGroup, scale: float
) -> Tensor:
    """query [num_rows, num_heads, head_dim] to the same shape."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[2]

    def per_kv_head(cache: Tensor) -> Tensor:
        """[num_rows, num_kv_heads, kv_len, head_dim]"""
        tokens = _gather(cache, group.blocks.flatten(), query.dtype)
        tokens.index_fill_(0, group.unseen, 0)
        return tokens.unflatten(0, group.seen.shape).transpose(1, 2)

    output = F.scaled_dot_product_attention(
        # Query heads that share a KV head take the dimension of a prefill's tokens.
        query.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim),
        per_kv_head(keys),
        per_kv_head(values),
        attn_mask=group.seen[:, None, None, :],
        scale=scale,
    )
    return output.reshape(num_rows, num_heads, head_dim)
