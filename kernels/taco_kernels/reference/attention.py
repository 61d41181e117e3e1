"""Paged attention, one token and one head at a time: slow, and plainly right."""

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """Causal attention of each query token over its sequence's KV, in float32.

    Args:
        query: [num_tokens, num_heads, head_dim]; the last tokens of each sequence, one sequence
            after the other.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim]; they hold the
            query tokens' own keys and values already.
        query_start_loc: [num_seqs + 1], first query row of each sequence.
        seq_lens: [num_seqs], tokens in the KV, query tokens included.
        block_tables: [num_seqs, max_blocks].
        sliding_window: how many tokens a token sees, itself included.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).
        alibi_slopes: [num_heads]; slope * (key position - query position) is added to a score
            (Press et al. 2021, "Train Short, Test Long").

    Returns:
        [num_tokens, num_heads, head_dim] in the query's dtype.
    """
    block_size, num_kv_heads = key_cache.shape[1:3]
    group_size = query.shape[1] // num_kv_heads
    output = torch.empty_like(query)
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        start, stop = query_start_loc[sequence : sequence + 2].tolist()
        positions = torch.arange(seq_len)
        blocks = block_tables[sequence, positions // block_size].long()
        sequence_keys = key_cache[blocks, positions % block_size].float()
        sequence_values = value_cache[blocks, positions % block_size].float()
        for row in range(start, stop):
            position = seq_len - (stop - row)
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            for head in range(query.shape[1]):
                kv_head = head // group_size
                keys = sequence_keys[first : position + 1, kv_head]
                values = sequence_values[first : position + 1, kv_head]
                scores = keys @ query[row, head].float() * scale
                if soft_cap is not None:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                if alibi_slopes is not None:
                    distances = positions[first : position + 1] - position
                    scores = scores + alibi_slopes[head] * distances
                output[row, head] = torch.softmax(scores, dim=0) @ values
    return output
