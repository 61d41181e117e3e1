"""Reference of paged attention: one token and one head at a time, slow and simple."""

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
    group_size = query.shape[1] // num_kv_heads
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
            for head in range(query.shape[1]):
                seen = visible
                if options.block_sparse is not None:
                    seen = seen & _sees_blocks(options.block_sparse, own, positions, head)
                kv_head = head // group_size
                products = keys[seen][:, kv_head] @ query[row, head].to(dtype)
                weights = _weights(products, positions[seen], own, head, options)
                output[row, head] = weights @ values[seen][:, kv_head]
    return output


def _sees_blocks(sparse: BlockSparse, own: int, positions: Tensor, head: int) -> Tensor:
    """Whether one head of the token at position `own` sees each of some positions."""
    blocks = positions // sparse.block_size
    is_local = own // sparse.block_size - blocks < sparse.num_local_blocks
    shift = sparse.head_offset + head * sparse.head_step + 1
    return is_local | ((blocks + shift) % sparse.stride == 0)


def _weights(
    products: Tensor, positions: Tensor, own: int, head: int, options: AttentionOptions
) -> Tensor:
    """Softmax weights of the seen tokens; with sinks their sum is below 1."""
    scores = products * options.scale
    if options.log_n is not None:
        scores = scores * max(1.0, math.log(own + 1) / math.log(options.log_n))
    if options.cap is not None:
        scores = options.cap * torch.tanh(scores / options.cap)
    if options.alibi is not None:
        scores = scores + options.alibi[head] * (positions - own)
    if options.sinks is None:
        return torch.softmax(scores, dim=0)
    return torch.softmax(torch.cat([scores, options.sinks[head : head + 1]]), dim=0)[:-1]
