"""Attention over paged KV in plain torch: runs on every device; the reference, not the fastest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.kv_entry import KVEntry
from taco_worker.attention.explicit_scores import attend_by_scores, needs_scores, scale_queries
from taco_worker.attention.kv_cache import KVCache, Scale
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.step_plans import (
    StepPlans,
    first_seen,
    indexable,
    query_positions,
    upload_indices,
)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence with several query tokens.

    Attributes:
        tokens: its rows of the query.
        blocks: [num_blocks], the blocks that its tokens can see.
        kv: the visible range of those blocks' tokens.
        mask: what its tokens see; None for plain causal.
    """

    tokens: slice
    blocks: Tensor
    kv: slice
    mask: _PrefillMask | None


@dataclass(frozen=True, slots=True)
class _PrefillMask:
    """Attributes:
    seen: [query_len, kv_len], true where a token is visible.
    query_positions, key_positions: [query_len] and [kv_len]; a tree's are depths.
    """

    seen: Tensor
    query_positions: Tensor
    key_positions: Tensor


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one query token each and KV of similar length.

    Attributes:
        rows: [num_rows], their rows of the query.
        blocks: [num_rows, num_blocks], the visible blocks, padded to a common number.
        seen: [num_rows, num_blocks * block_size], true where a token is visible.
        unseen: the invisible tokens, as indices into all rows' tokens concatenated.
        positions: int64 [num_rows, num_blocks * block_size + 1], of the tokens, then of the query;
            None unless scores depend on them.
    """

    rows: Tensor
    blocks: Tensor
    seen: Tensor
    unseen: Tensor
    positions: Tensor | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """An entry's keys or values in the blocks of the cache, and their scale."""

    numbers: Tensor
    scale: Scale


@dataclass(frozen=True, slots=True)
class _BatchPlan:
    prefills: list[_Prefill]
    decode_groups: list[_DecodeGroup]


class TorchAttention:
    """Runs prefills one sequence at a time and decodes in groups of equal padding.

    A group's padding depends on each sequence's own length, never on its neighbours. Padding is
    zeroed before use, so that no infinity of a stale block can leak.
    """

    name = "torch"
    supports_trees = True
    supports_scales = True

    def __init__(self) -> None:
        self._plans: StepPlans[_BatchPlan] = StepPlans()
        self._positions: StepPlans[Tensor] = StepPlans()

    def unsupported(self, options: AttentionOptions, entry: KVEntry) -> str | None:
        return None

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        entry: int,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> Tensor:
        by_scores = needs_scores(options)
        plan = self._plans.get(
            metadata,
            (options.window, by_scores),
            lambda: _plan_batch(metadata, kv_cache.block_size, options.window, by_scores),
        )
        if options.log_n is not None:
            positions = self._positions.get(metadata, None, lambda: query_positions(metadata))
            query = scale_queries(query, positions, options.log_n)
        key_scale, value_scale = kv_cache.scales(entry)
        keys = _Stored(kv_cache.key(entry), key_scale)
        values = _Stored(kv_cache.value(entry), value_scale)
        output = query.new_empty(*query.shape[:2], values.numbers.shape[3])
        prefill_rows = _prefill_by_scores if by_scores else _prefill
        decode_rows = _decode_by_scores if by_scores else _decode
        for prefill in plan.prefills:
            rows = query[prefill.tokens]
            output[prefill.tokens] = prefill_rows(rows, keys, values, prefill, options)
        for group in plan.decode_groups:
            output[group.rows] = decode_rows(query[group.rows], keys, values, group, options)
        return output


def _plan_batch(
    metadata: AttentionMetadata, block_size: int, window: int | None, by_scores: bool
) -> _BatchPlan:
    """`by_scores`: whether every part needs masks and positions."""
    prefills: list[_Prefill] = []
    decodes: dict[int, list[tuple[int, int]]] = {}
    row = 0
    for sequence, query_len in enumerate(metadata.query_lens_host):
        seq_len = metadata.seq_lens_host[sequence]
        if query_len == 1:
            first = first_seen(seq_len - 1, window) // block_size
            num_blocks = -(-seq_len // block_size) - first
            decodes.setdefault(_padded(num_blocks), []).append((sequence, row))
        elif query_len > 1:
            tokens = slice(row, row + query_len)
            prefills.append(
                _plan_prefill(metadata, sequence, tokens, block_size, window, by_scores)
            )
        row += query_len
    groups = [
        _plan_decode_group(members, metadata, padded, block_size, window, by_scores)
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
    window: int | None,
    by_scores: bool,
) -> _Prefill:
    query_len, seq_len = tokens.stop - tokens.start, metadata.seq_lens_host[sequence]
    first = first_seen(seq_len - query_len, window)
    first_block, last_block = first // block_size, -(-seq_len // block_size)
    is_windowed = window is not None and window < seq_len
    is_causal = metadata.tree is None and seq_len == query_len and not is_windowed
    return _Prefill(
        tokens=tokens,
        blocks=metadata.block_tables[sequence, first_block:last_block],
        kv=slice(first - first_block * block_size, seq_len - first_block * block_size),
        mask=(
            None
            if is_causal and not by_scores
            else _prefill_mask(metadata, tokens, first, seq_len, window)
        ),
    )


def _prefill_mask(
    metadata: AttentionMetadata, tokens: slice, first: int, seq_len: int, window: int | None
) -> _PrefillMask:
    """The mask of one sequence's tokens over its KV from `first` on."""
    query_len = tokens.stop - tokens.start
    context_len, tree = seq_len - query_len, metadata.tree
    device = metadata.block_tables.device
    places = torch.arange(first, seq_len, device=device)
    rows = torch.arange(context_len, seq_len, device=device)
    seen = places <= rows.unsqueeze(1)
    query_places, key_places = rows, places
    if tree is not None:
        masks = tree.masks[tokens].unsqueeze(1)
        bits = (masks >> torch.arange(query_len, device=device).clamp(max=63)) & 1
        seen[:, context_len - first :] &= (masks == -1) | (bits == 1)
        query_places = tree.positions[tokens]
        key_places = torch.cat([places[: context_len - first], tree.positions[tokens]])
    if window is not None:
        seen &= key_places > query_places.unsqueeze(1) - window
    return _PrefillMask(seen, query_places, key_places)


def _plan_decode_group(
    members: list[tuple[int, int]],
    metadata: AttentionMetadata,
    num_blocks: int,
    block_size: int,
    window: int | None,
    by_scores: bool,
) -> _DecodeGroup:
    device = metadata.block_tables.device
    sequences, rows = np.array(members).T
    seq_lens = np.array(metadata.seq_lens_host)[sequences, None]
    first_seens = np.zeros_like(seq_lens)
    if window is not None:
        first_seens = np.maximum(0, seq_lens - window)
    first_blocks = first_seens // block_size

    # Table entries past the last block are undefined: gather the last block again instead.
    columns = np.minimum(first_blocks + np.arange(num_blocks), (seq_lens - 1) // block_size)
    positions = first_blocks * block_size + np.arange(num_blocks * block_size)
    seen = (positions >= first_seens) & (positions < seq_lens)
    with_own = np.concatenate([positions, seq_lens - 1], axis=1)
    return _DecodeGroup(
        rows=upload_indices(rows, device),
        blocks=metadata.block_tables[
            upload_indices(sequences[:, None], device), upload_indices(columns, device)
        ],
        seen=torch.from_numpy(seen).to(device, non_blocking=True),
        unseen=upload_indices(np.flatnonzero(~seen), device),
        positions=upload_indices(with_own, device) if by_scores else None,
    )


def _gather(stored: _Stored, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """All tokens of some blocks, [num_tokens, num_kv_heads, dim]."""
    numbers, scale = stored.numbers, stored.scale
    gathered = indexable(numbers).index_select(0, blocks).view(numbers.dtype)
    if isinstance(scale, Tensor):
        gathered = gathered.float() * scale.index_select(0, blocks).unsqueeze(-1)
    elif scale != 1.0:
        gathered = gathered.float() * scale
    return gathered.to(dtype).flatten(0, 1)


def _gather_group(stored: _Stored, group: _DecodeGroup, dtype: torch.dtype) -> Tensor:
    """[num_rows, kv_len, num_kv_heads, dim], unseen tokens zeroed."""
    tokens = _gather(stored, group.blocks.flatten(), dtype)
    tokens.index_fill_(0, group.unseen, 0)
    return tokens.unflatten(0, group.seen.shape)


def _prefill(
    query: Tensor, keys: _Stored, values: _Stored, plan: _Prefill, options: AttentionOptions
) -> Tensor:
    """query [query_len, num_heads, key_dim] to [query_len, num_heads, value_dim]."""
    query_len, num_heads, _ = query.shape
    num_kv_heads = keys.numbers.shape[2]
    group_size = num_heads // num_kv_heads

    def per_query_head(stored: _Stored) -> Tensor:
        """[num_kv_heads, group_size, kv_len, dim], each KV head repeated as a view."""
        rows = _gather(stored, plan.blocks, query.dtype)[plan.kv]
        return rows.transpose(0, 1).unsqueeze(1).expand(-1, group_size, -1, -1)

    output = F.scaled_dot_product_attention(
        query.unflatten(1, (num_kv_heads, group_size)).permute(1, 2, 0, 3),
        per_query_head(keys),
        per_query_head(values),
        attn_mask=None if plan.mask is None else plan.mask.seen,
        is_causal=plan.mask is None,
        scale=options.scale,
    )
    return output.permute(2, 0, 1, 3).reshape(query_len, num_heads, -1)


def _prefill_by_scores(
    query: Tensor, keys: _Stored, values: _Stored, plan: _Prefill, options: AttentionOptions
) -> Tensor:
    """As `_prefill`, with all options."""
    assert plan.mask is not None
    return attend_by_scores(
        query.unsqueeze(0),
        _gather(keys, plan.blocks, query.dtype)[plan.kv].unsqueeze(0),
        _gather(values, plan.blocks, query.dtype)[plan.kv].unsqueeze(0),
        plan.mask.seen.unsqueeze(0),
        plan.mask.query_positions.unsqueeze(0),
        plan.mask.key_positions.unsqueeze(0),
        options,
    ).squeeze(0)


def _decode(
    query: Tensor, keys: _Stored, values: _Stored, group: _DecodeGroup, options: AttentionOptions
) -> Tensor:
    """query [num_rows, num_heads, key_dim] to [num_rows, num_heads, value_dim]."""
    output = F.scaled_dot_product_attention(
        # Query heads that share a KV head take the dimension of a prefill's tokens.
        query.unflatten(1, (keys.numbers.shape[2], -1)),
        _gather_group(keys, group, query.dtype).transpose(1, 2),
        _gather_group(values, group, query.dtype).transpose(1, 2),
        attn_mask=group.seen[:, None, None, :],
        scale=options.scale,
    )
    return output.flatten(1, 2)


def _decode_by_scores(
    query: Tensor, keys: _Stored, values: _Stored, group: _DecodeGroup, options: AttentionOptions
) -> Tensor:
    """As `_decode`, with all options."""
    assert group.positions is not None
    return attend_by_scores(
        query.unsqueeze(1),
        _gather_group(keys, group, query.dtype),
        _gather_group(values, group, query.dtype),
        group.seen.unsqueeze(1),
        group.positions[:, -1:],
        group.positions[:, :-1],
        options,
    ).squeeze(1)
