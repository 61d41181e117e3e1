"""Attention with all options in torch: scores are computed, masked and weighted one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions, BlockSparse

# Scores held at a time, in numbers: longer prompts are computed in parts.
_MAX_SCORES = 1 << 25


def needs_scores(options: AttentionOptions) -> bool:
    """Whether the options change scores or weights, which torch's fused attention cannot do."""
    return (
        options.cap is not None
        or options.alibi is not None
        or options.sinks is not None
        or options.block_sparse is not None
    )


def scale_queries(query: Tensor, positions: Tensor, log_n: int) -> Tensor:
    """query [num_tokens, num_heads, key_dim] times max(1, log(position + 1) / log(log_n))."""
    factors = (torch.log(positions + 1.0) / math.log(log_n)).clamp(min=1)
    return (query.float() * factors[:, None, None]).to(query.dtype)


def attend_by_scores(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """Attention of sequences with equal numbers of queries and keys, in float32.

    Args:
        query: [num_seqs, query_len, num_heads, key_dim], scaled by `scale_queries` already.
        keys, values: [num_seqs, kv_len, num_kv_heads, dim of each].
        seen: bool [num_seqs, query_len, kv_len], without the block-sparse pattern.
        query_positions, key_positions: [num_seqs, query_len] and [num_seqs, kv_len].

    Returns:
        [num_seqs, query_len, num_heads, value_dim] in the query's dtype.
    """
    num_seqs, query_len, num_heads, _ = query.shape
    step = max(1, _MAX_SCORES // (num_seqs * num_heads * keys.shape[1]))
    wide_keys = keys.float().permute(0, 2, 3, 1)
    wide_values = values.float().transpose(1, 2)
    parts = [
        _attend(
            query[:, rows],
            wide_keys,
            wide_values,
            seen[:, rows],
            query_positions[:, rows],
            key_positions,
            options,
        )
        for rows in (slice(start, start + step) for start in range(0, query_len, step))
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    options: AttentionOptions,
) -> Tensor:
    """As `attend_by_scores`, with keys [num_seqs, num_kv_heads, key_dim, kv_len] and values
    [num_seqs, num_kv_heads, kv_len, value_dim]."""
    num_seqs, query_len, num_heads, key_dim = query.shape
    num_kv_heads = keys.shape[1]
    # Query heads that share a KV head become rows of one product.
    rows = query.float().transpose(1, 2).reshape(num_seqs, num_kv_heads, -1, key_dim)
    scores = (rows @ keys).view(num_seqs, num_heads, query_len, -1) * options.scale
    if options.cap is not None:
        scores = options.cap * torch.tanh(scores / options.cap)
    if options.alibi is not None:
        distances = key_positions.unsqueeze(1) - query_positions.unsqueeze(2)
        scores = scores + options.alibi[:, None, None] * distances.unsqueeze(1)
    visible = seen.unsqueeze(1)
    if options.block_sparse is not None:
        visible = visible & _sees_blocks(
            options.block_sparse, num_heads, query_positions, key_positions
        )
    scores = scores.masked_fill(~visible, -math.inf)
    if options.sinks is not None:
        sinks = options.sinks[:, None, None].expand(num_seqs, -1, query_len, 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    rows = weights.reshape(num_seqs, num_kv_heads, -1, weights.shape[-1]) @ values
    output = rows.view(num_seqs, num_heads, query_len, -1).transpose(1, 2)
    return output.to(query.dtype)


def _sees_blocks(
    sparse: BlockSparse, num_heads: int, query_positions: Tensor, key_positions: Tensor
) -> Tensor:
    """Whether each head of a query sees a key, bool [num_seqs, num_heads, query_len, kv_len]."""
    query_blocks = query_positions[:, None, :, None] // sparse.block_size
    key_blocks = key_positions[:, None, None, :] // sparse.block_size
    heads = torch.arange(num_heads, device=key_positions.device)[:, None, None]
    shifts = sparse.head_offset + heads * sparse.head_step + 1
    is_local = query_blocks - key_blocks < sparse.num_local_blocks
    return is_local | ((key_blocks + shifts) % sparse.stride == 0)
