"""Reference of paged attention: one token and one head at a time, slow and simple."""

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
    tree_masks: Tensor | None = None,
    tree_positions: Tensor | None = None,
) -> Tensor:
    """Attention of each query token over its sequence's KV, in float32.

    Args:
        query: [num_tokens, num_heads, head_dim]; the last tokens of each sequence, grouped by
            sequence.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim]; they already
            hold the query tokens' own keys and values.
        query_start_loc: [num_seqs + 1], first query row of each sequence.
        seq_lens: [num_seqs], tokens in the KV, query tokens included.
        block_tables: [num_seqs, max_blocks].
        sliding_window: number of tokens that a token sees, including itself.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).
        alibi_slopes: [num_heads]; slope * (key position - query position) is added to a score
            (Press et al. 2021, "Train Short, Test Long").
        tree_masks: int64 [num_tokens]; bit j says whether the token sees its sequence's j-th query
            token. -1 is causal order; None is causal order for all.
        tree_positions: [num_tokens], positions of the query tokens in a tree, used by windows and
            ALiBi. Given with tree_masks.

    Returns:
        [num_tokens, num_heads, head_dim] in the query's dtype.
    """
    block_size, num_kv_heads = key_cache.shape[1:3]
    group_size = query.shape[1] // num_kv_heads
    output = torch.empty_like(query)
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        start, stop = query_start_loc[sequence : sequence + 2].tolist()
        places = torch.arange(seq_len)
        blocks = block_tables[sequence, places // block_size].long()
        sequence_keys = key_cache[blocks, places % block_size].float()
        sequence_values = value_cache[blocks, places % block_size].float()
        context_len = seq_len - (stop - start)
        positions = places.clone()
        if tree_positions is not None:
            positions[context_len:] = tree_positions[start:stop]
        for row in range(start, stop):
            place = context_len + row - start
            seen = places <= place
            if tree_masks is not None and (mask := int(tree_masks[row])) != -1:
                bits = torch.tensor([bool(mask >> j & 1) for j in range(stop - start)])
                seen = torch.cat([places[:context_len] >= 0, bits])
            distances = positions - positions[place]
            if sliding_window is not None:
                seen = seen & (distances > -sliding_window)
            keys, values = sequence_keys[seen], sequence_values[seen]
            for head in range(query.shape[1]):
                kv_head = head // group_size
                scores = keys[:, kv_head] @ query[row, head].float() * scale
                if soft_cap is not None:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                if alibi_slopes is not None:
                    scores = scores + alibi_slopes[head] * distances[seen]
                output[row, head] = torch.softmax(scores, dim=0) @ values[:, kv_head]
    return output
