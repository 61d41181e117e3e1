"""Attention by xformers' operators: split-K over the blocks for decodes, varlen for prefills."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from xformers.ops import fmha
from xformers.ops.fmha import attn_bias as biases
from xformers.ops.fmha import flash3, triton_splitk
from xformers.ops.fmha.common import AttentionFwOpBase, Inputs

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.kv_entry import KVEntry
from taco_worker.attention.explicit_scores import scale_queries
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.step_plans import (
    StepPlans,
    first_seen,
    query_positions,
    upload_indices,
)

Operator = type[AttentionFwOpBase]

# Tensor-core products need at least this many keys, and a tile must not cross a block's end.
_MIN_TILE, _MAX_TILE = 16, 64


class Operators(Protocol):
    """The xformers operators that run on this machine.

    Queries, keys and values are [1, tokens, num_kv_heads, group_size, head_dim].
    """

    def supports(self, operator: Operator, inputs: Inputs) -> bool:
        """Whether `run` can use this operator for these inputs."""
        ...

    def run(self, operator: Operator | None, inputs: Inputs) -> Tensor:
        """Attention in the query's shape; without an operator xformers chooses one."""
        ...


class InstalledOperators:
    def supports(self, operator: Operator, inputs: Inputs) -> bool:
        return operator.supports(inputs)

    def run(self, operator: Operator | None, inputs: Inputs) -> Tensor:
        return fmha.memory_efficient_attention_forward(
            inputs.query,
            inputs.key,
            inputs.value,
            inputs.attn_bias,
            scale=inputs.scale,
            op=operator,
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences that one operator call serves.

    Attributes:
        rows: their rows of the query.
        bias: the keys that each of them sees.
        operator: an operator that reads the cache in place; None if keys and values are gathered.
        tokens: block and offset of each token to gather.
    """

    rows: slice | Tensor
    bias: biases.AttentionBias
    operator: Operator | None = None
    tokens: tuple[Tensor, Tensor] | None = None


class XformersAttention:
    """Runs all decodes together and all prefills together.

    An operator that takes block tables reads the cache in place. Otherwise the visible keys and
    values are gathered first, one layer at a time.
    """

    name = "xformers"
    supports_trees = False
    supports_scales = False

    def __init__(self, operators: Operators | None = None) -> None:
        self._operators = operators or InstalledOperators()
        self._plans: StepPlans[list[_Part]] = StepPlans()
        self._positions: StepPlans[Tensor] = StepPlans()

    def unsupported(self, options: AttentionOptions, entry: KVEntry) -> str | None:
        lacking = (
            ("a cap on scores", options.cap is not None),
            ("ALiBi", options.alibi is not None),
            ("attention sinks", options.sinks is not None),
            ("block-sparse attention", options.block_sparse is not None),
            ("a latent KV cache", entry.latent),
            ("keys and values of different sizes", entry.key_dim != entry.value_dim),
        )
        return next((name for name, is_needed in lacking if is_needed), None)

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        entry: int,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> Tensor:
        if options.log_n is not None:
            positions = self._positions.get(metadata, None, lambda: query_positions(metadata))
            query = scale_queries(query, positions, options.log_n)
        keys, values = kv_cache.key(entry), kv_cache.value(entry)
        parts = self._plans.get(
            metadata,
            (options.window, keys.shape),
            lambda: self._plan(query, keys, metadata, options.window),
        )
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for part in parts:
            rows = query[part.rows]
            output[part.rows] = self._attend_part(rows, keys, values, part, options.scale)
        return output

    def _attend_part(
        self, query: Tensor, keys: Tensor, values: Tensor, part: _Part, scale: float
    ) -> Tensor:
        if part.tokens is None:
            keys, values = _as_pages(keys), _as_pages(values)
        else:
            keys, values = (_gather(cache, *part.tokens, query.dtype) for cache in (keys, values))
        inputs = _inputs(query, keys, values, part.bias, scale)
        return self._operators.run(part.operator, inputs).view(query.shape)

    def _plan(
        self, query: Tensor, keys: Tensor, metadata: AttentionMetadata, window: int | None
    ) -> list[_Part]:
        query_lens = np.array(metadata.query_lens_host)
        decodes, prefills = np.flatnonzero(query_lens == 1), np.flatnonzero(query_lens > 1)
        parts: list[_Part] = []
        if decodes.size:
            part = self._plan_paged_decodes(decodes, query, keys, metadata, window)
            parts.append(part or _plan_gathered(decodes, keys, metadata, window))
        if prefills.size:
            part = self._plan_paged_prefills(prefills, query, keys, metadata, window)
            parts.append(part or _plan_gathered(prefills, keys, metadata, window))
        return parts

    def _plan_paged_decodes(
        self,
        sequences: np.ndarray,
        query: Tensor,
        keys: Tensor,
        metadata: AttentionMetadata,
        window: int | None,
    ) -> _Part | None:
        """None if no installed operator reads this cache."""
        block_size = keys.shape[1]
        if block_size % _MIN_TILE:
            return None
        bias = _decode_bias(sequences, keys, metadata, window)
        return self._plan_paged(_split_k(block_size), bias, sequences, query, keys, metadata)

    def _plan_paged_prefills(
        self,
        sequences: np.ndarray,
        query: Tensor,
        keys: Tensor,
        metadata: AttentionMetadata,
        window: int | None,
    ) -> _Part | None:
        """None likewise. No paged bias has a window; without context there is little to gather."""
        seq_lens = [metadata.seq_lens_host[sequence] for sequence in sequences]
        query_lens = [metadata.query_lens_host[sequence] for sequence in sequences]
        if window is not None or seq_lens == query_lens:
            return None
        bias = biases.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
            q_seqlen=query_lens,
            kv_seqlen=seq_lens,
            block_tables=_pages(
                keys, metadata.block_tables[upload_indices(sequences, keys.device)]
            ),
            page_size=keys.shape[1],
            device=keys.device,
        )
        return self._plan_paged(flash3.FwOp, bias, sequences, query, keys, metadata)

    def _plan_paged(
        self,
        operator: Operator,
        bias: biases.AttentionBias,
        sequences: np.ndarray,
        query: Tensor,
        keys: Tensor,
        metadata: AttentionMetadata,
    ) -> _Part | None:
        if keys.dtype != query.dtype or _blocks_apart(keys) is None:
            return None
        rows = _rows_of(sequences, metadata, keys.device)
        pages = _as_pages(keys)
        if not self._operators.supports(operator, _inputs(query[rows], pages, pages, bias, 1.0)):
            return None
        return _Part(rows, bias, operator)


@cache
def _split_k(block_size: int) -> Operator:
    """xformers' own operator splits blocks of 64 tokens; the tile must divide TACO's block."""
    tile = next(size for size in (_MAX_TILE, 32, _MIN_TILE) if block_size % size == 0)
    return type(f"SplitK{tile}", (triton_splitk.FwOp,), {"BLOCK_N": tile})


def _decode_bias(
    sequences: np.ndarray, keys: Tensor, metadata: AttentionMetadata, window: int | None
) -> biases.AttentionBias:
    """One query per sequence; the block tables start where the window starts."""
    block_size, device = keys.shape[1], keys.device
    seq_lens = np.array(metadata.seq_lens_host)[sequences]
    first = np.array([first_seen(seq_len - 1, window) for seq_len in seq_lens.tolist()])
    first_blocks = first // block_size
    width = int((-(-seq_lens // block_size) - first_blocks).max())
    # Entries past a sequence's end are not read.
    columns = np.minimum(
        first_blocks[:, None] + np.arange(width), metadata.block_tables.shape[1] - 1
    )
    tables = metadata.block_tables[
        upload_indices(sequences, device).unsqueeze(1), upload_indices(columns, device)
    ]
    tables = _pages(keys, tables)
    ones = [1] * sequences.size
    if window is None:
        return biases.PagedBlockDiagonalPaddedKeysMask.from_seqlens(
            q_seqlen=ones,
            kv_seqlen=seq_lens.tolist(),
            block_tables=tables,
            page_size=block_size,
            device=device,
        )
    padding = width * block_size
    starts = first - first_blocks * block_size + np.arange(sequences.size) * padding
    unpaged = biases.BlockDiagonalGappyKeysMask.from_seqlens(
        q_seqlen=ones,
        kv_seqstarts=[*starts.tolist(), sequences.size * padding],
        kv_seqlen=(seq_lens - first).tolist(),
        device=device,
    )
    # from_seqlens rejects the starts that from_seqlens_gappy accepts (xformers 0.0.35).
    return unpaged.make_paged(
        block_tables=tables,
        page_size=block_size,
        notional_padding=padding,
        paged_type=biases.PagedBlockDiagonalGappyKeysMask,
    )


def _plan_gathered(
    sequences: np.ndarray, keys: Tensor, metadata: AttentionMetadata, window: int | None
) -> _Part:
    block_size, device = keys.shape[1], keys.device
    query_lens = np.array(metadata.query_lens_host)[sequences]
    seq_lens = np.array(metadata.seq_lens_host)[sequences]
    contexts = (seq_lens - query_lens).tolist()
    first = np.array([first_seen(context, window) for context in contexts])
    kv_lens = seq_lens - first
    ends = np.cumsum(kv_lens)
    positions = np.arange(ends[-1]) + np.repeat(first - (ends - kv_lens), kv_lens)
    owners, columns, offsets = (
        upload_indices(array, device)
        for array in (
            np.repeat(sequences, kv_lens),
            positions // block_size,
            positions % block_size,
        )
    )
    bias = biases.BlockDiagonalMask.from_seqlens(
        query_lens.tolist(), kv_lens.tolist(), device=device
    )
    return _Part(
        rows=_rows_of(sequences, metadata, device),
        bias=(
            bias.make_causal_from_bottomright()
            if window is None
            else bias.make_local_attention_from_bottomright(window)
        ),
        tokens=(metadata.block_tables[owners, columns], offsets),
    )


def _rows_of(
    sequences: np.ndarray, metadata: AttentionMetadata, device: torch.device
) -> slice | Tensor:
    """The query rows of some sequences (ascending); a slice if they are contiguous."""
    query_lens = np.array(metadata.query_lens_host)
    ends = np.cumsum(query_lens)
    first, end = int(ends[sequences[0]] - query_lens[sequences[0]]), int(ends[sequences[-1]])
    if end - first == query_lens[sequences].sum():
        return slice(first, end)
    rows = [
        np.arange(ends[sequence] - query_lens[sequence], ends[sequence]) for sequence in sequences
    ]
    return upload_indices(np.concatenate(rows), device)


def _gather(cache: Tensor, blocks: Tensor, offsets: Tensor, dtype: torch.dtype) -> Tensor:
    """Gather tokens of a cache, [1, num_tokens, num_kv_heads, head_dim]."""
    return cache[blocks, offsets].to(dtype).unsqueeze(0)


def _inputs(
    query: Tensor, keys: Tensor, values: Tensor, bias: biases.AttentionBias, scale: float
) -> Inputs:
    """Add the dimension of grouped heads; each KV head is repeated as a view."""
    grouped = query.unflatten(1, (keys.shape[2], -1)).unsqueeze(0)
    group_size = grouped.shape[3]
    return Inputs(
        query=grouped,
        key=keys.unsqueeze(3).expand(-1, -1, -1, group_size, -1),
        value=values.unsqueeze(3).expand(-1, -1, -1, group_size, -1),
        attn_bias=bias,
        scale=scale,
    )


def _blocks_apart(cache: Tensor) -> int | None:
    """Distance of a layer's neighbouring blocks, in blocks; None if it is not a whole number."""
    block_stride = cache.shape[1] * cache.stride(1)
    return None if cache.stride(0) % block_stride else cache.stride(0) // block_stride


def _as_pages(cache: Tensor) -> Tensor:
    """One layer's keys or values as [1, num_tokens, num_kv_heads, head_dim], without a copy.

    xformers needs a constant stride between tokens, so the view also spans the other layers
    between the blocks. No block table refers to a page there.
    """
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    apart = cache.stride(0) // (block_size * cache.stride(1))
    num_tokens = ((num_blocks - 1) * apart + 1) * block_size
    return cache.as_strided(
        (1, num_tokens, num_kv_heads, head_dim),
        (num_tokens * cache.stride(1), *cache.stride()[1:]),
    )


def _pages(cache: Tensor, block_tables: Tensor) -> Tensor:
    """The indices of the blocks in `_as_pages`."""
    return block_tables * (_blocks_apart(cache) or 1)
