"""Reference of paged attention: one token at a time, slow and simple."""

import math

import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions, BlockSparse


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    options: AttentionOptions,
    tree_masks: Tensor | None = None,
    tree_positions: Tensor | None = None,
) -> Tensor:
    """Attention of each query token over its sequence's KV.

    Computes in float32, or in float64 if the query has that type.

    Args:
        query: [num_tokens, num_heads, key_dim]; the last tokens of each sequence, grouped by
            sequence.
        key_cache: [num_blocks, block_size, num_kv_heads, key_dim]; it already holds the query
            tokens' own keys.
        value_cache: likewise with value_dim.
        query_start_loc: [num_seqs + 1], first query row of each sequence.
        seq_lens: [num_seqs], tokens in the KV, query tokens included.
        block_tables: [num_seqs, max_blocks].
        tree_masks: int64 [num_tokens]; bit j says whether the token sees its sequence's j-th query
            token. -1 is causal order; None is causal order for all.
        tree_positions: [num_tokens], positions of the query tokens in a tree, used by all options
            that depend on positions. Given with tree_masks.

    Returns:
        [num_tokens, num_heads, value_dim] in the query's dtype.
    """
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    block_size, num_kv_heads = key_cache.shape[1:3]
    output = query.new_empty(*query.shape[:2], value_cache.shape[3])
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        start, stop = query_start_loc[sequence : sequence + 2].tolist()
        places = torch.arange(seq_len)
        blocks = block_tables[sequence, places // block_size].long()
        keys = key_cache[blocks, places % block_size].to(dtype)
        values = value_cache[blocks, places % block_size].to(dtype)
        context_len = seq_len - (stop - start)
        positions = places.clone()
        if tree_positions is not None:
            positions[context_len:] = tree_positions[start:stop]
        for row in range(start, stop):
            place = context_len + row - start
            visible = places <= place
            if tree_masks is not None and (mask := int(tree_masks[row])) != -1:
                bits = torch.tensor([bool(mask >> j & 1) for j in range(stop - start)])
                visible = torch.cat([places[:context_len] >= 0, bits])
            own = int(positions[place])
            if options.window is not None:
                visible = visible & (positions > own - options.window)
            rows = query[row].to(dtype).unflatten(0, (num_kv_heads, -1))
            products = torch.einsum("hgd,nhd->hgn", rows, keys[visible]).flatten(0, 1)
            weights = _weights(products, positions[visible], own, options)
            by_kv_head = weights.unflatten(0, (num_kv_heads, -1))
            mixed = torch.einsum("hgn,nhd->hgd", by_kv_head, values[visible])
            output[row] = mixed.flatten(0, 1)
    return output


def _sees_blocks(sparse: BlockSparse, own: int, positions: Tensor, num_heads: int) -> Tensor:
    """Whether each head of the token at position `own` sees each position: [num_heads, n]."""
    blocks = positions // sparse.block_size
    is_local = own // sparse.block_size - blocks < sparse.num_local_blocks
    shift = sparse.head_offset + torch.arange(num_heads).unsqueeze(1) * sparse.head_step + 1
    return is_local | ((blocks + shift) % sparse.stride == 0)


def _weights(products: Tensor, positions: Tensor, own: int, options: AttentionOptions) -> Tensor:
    """Softmax weights [num_heads, n] of the seen tokens; with sinks a head's sum is below 1."""
    scores = products * options.scale
    if options.log_n is not None:
        scores = scores * max(1.0, math.log(own + 1) / math.log(options.log_n))
    if options.cap is not None:
        scores = options.cap * torch.tanh(scores / options.cap)
    if options.alibi is not None:
        scores = scores + options.alibi.unsqueeze(1) * (positions - own)
    if options.block_sparse is not None:
        seen = _sees_blocks(options.block_sparse, own, positions, len(scores))
        scores = scores.masked_fill(~seen, -math.inf)
    if options.sinks is None:
        return torch.softmax(scores, dim=1)
    return torch.softmax(torch.cat([scores, options.sinks.unsqueeze(1)], dim=1), dim=1)[:, :-1]
