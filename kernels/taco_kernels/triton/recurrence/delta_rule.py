"""The gated delta rule over a step's sequences, token by token, one launch.

Reference: `taco_kernels.reference.recurrence.delta_rule`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.triton.recurrence.sequence_rows import (
    SequenceRows,
    check_heads,
    check_memory,
    check_parameter,
    check_tokens,
    row_arguments,
)
from taco_kernels.triton.recurrence.state_tile import (
    load_state,
    softplus,
    state_places,
    tile_options,
)

_EPS = tl.constexpr(1e-6)  # of the norms of queries and keys


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    rates: Tensor,
    decay_bias: Tensor,
    memory: Tensor,
    states: SequenceRows,
    *,
    beta_scale: float,
) -> Tensor:
    """The gated delta rule (Yang et al. 2024, "Gated Delta Networks", section 3.1) in float32.

    A token's bits do not depend on how its sequence is cut into steps.

    Args:
        query, key: [num_tokens, num_key_heads, key_dim]; each head is shared by neighbouring heads
            of the value. The last stride of these and the following three must be 1.
        value: [num_tokens, num_heads, value_dim].
        decay: [num_tokens, num_heads], or [num_tokens, num_heads, key_dim].
        beta: [num_tokens, num_heads].
        rates: [num_heads], negative.
        decay_bias: as decay without its first axis.
        memory: float32 [num_rows, num_heads, key_dim, value_dim], of which each row is contiguous.

    Returns:
        [num_tokens, num_heads, value_dim] in value's dtype, contiguous.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    check_heads(query, key, value)
    num_tokens, num_heads, value_dim = value.shape
    num_key_heads, key_dim = key.shape[1:]
    of_columns = (key_dim,) if decay.dim() == 3 else ()
    check_tokens("decay", decay, (num_tokens, num_heads, *of_columns))
    check_tokens("beta", beta, (num_tokens, num_heads))
    check_parameter("rates", rates, (num_heads,))
    check_parameter("decay_bias", decay_bias, (num_heads, *of_columns))
    check_memory(memory, (num_heads, key_dim, value_dim))
    arguments = row_arguments(states)
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    num_seqs = len(states.rows)
    if num_tokens == 0 or num_seqs == 0:
        return out
    options = tile_options(key_dim, value_dim)
    _delta_rule_kernel[(triton.cdiv(value_dim, options["BLOCK"]), num_heads, num_seqs)](
        query,
        key,
        value,
        decay,
        beta,
        rates,
        decay_bias,
        out,
        memory,
        *arguments,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *decay.stride()[:2],
        beta.stride(0),
        memory.stride(0),
        float(beta_scale),
        HEADS=num_heads,
        HEADS_PER_KEY=num_heads // num_key_heads,
        DECAYS_COLUMNS=decay.dim() == 3,
        **options,
    )
    return out


@triton.jit
def _delta_rule_kernel(
    query,
    key,
    value,
    decay,
    beta,
    rates,
    decay_bias,
    out,
    memory,
    query_start,
    rows,
    sources,
    saved_tokens,
    saved_rows,
    query_token,
    query_head,
    key_token,
    key_head,
    value_token,
    value_head,
    decay_token,
    decay_head,
    beta_token,
    memory_row,
    beta_scale,
    HEADS: tl.constexpr,
    HEADS_PER_KEY: tl.constexpr,
    DECAYS_COLUMNS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_KEY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per BLOCK columns of a head's values in a sequence, with their part of the state.

    query_token, ... memory_row are strides.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    first = tl.load(query_start + sequence)
    past = tl.load(query_start + sequence + 1)
    if first >= past:
        return
    split = first + tl.load(saved_tokens + sequence)
    own_row = tl.load(rows + sequence)
    saved_row = tl.load(saved_rows + sequence)
    places, in_state = state_places(head, KEY_DIM, VALUE_DIM, PADDED_KEY, BLOCK)
    state = load_state(memory, memory_row, tl.load(sources + sequence), places, in_state)

    key_columns = tl.arange(0, PADDED_KEY)
    is_key = key_columns < KEY_DIM
    value_columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = value_columns < VALUE_DIM
    query += head // HEADS_PER_KEY * query_head + key_columns
    key += head // HEADS_PER_KEY * key_head + key_columns
    value += head * value_head + value_columns
    out += head * VALUE_DIM + value_columns
    rate = tl.load(rates + head).to(tl.float32)
    if DECAYS_COLUMNS:
        decay += head * decay_head + key_columns
        bias = tl.load(decay_bias + head * KEY_DIM + key_columns, mask=is_key, other=0.0)
    else:
        decay += head
        bias = tl.load(decay_bias + head)

    # The tokens before the state to save, and those after it, in one loop's code: equal bits.
    for part in range(2):
        begin = tl.where(part == 0, first, split)
        end = tl.where(part == 0, split, past)
        for token in tl.range(begin, end, num_stages=3):
            at = tl.cast(token, tl.int64)
            queries = tl.load(query + at * query_token, mask=is_key, other=0.0).to(tl.float32)
            keys = tl.load(key + at * key_token, mask=is_key, other=0.0).to(tl.float32)
            values = tl.load(value + at * value_token, mask=is_value, other=0.0).to(tl.float32)
            strength = tl.load(beta + at * beta_token + head).to(tl.float32)
            if DECAYS_COLUMNS:
                logits = tl.load(decay + at * decay_token, mask=is_key, other=0.0).to(tl.float32)
            else:
                logits = tl.load(decay + at * decay_token).to(tl.float32)
            factors = tl.exp(rate * softplus(logits + bias.to(tl.float32)))
            strength = beta_scale / (1.0 + tl.exp(-strength))
            queries *= tl.rsqrt(tl.sum(queries * queries) + _EPS) * KEY_DIM**-0.5
            keys *= tl.rsqrt(tl.sum(keys * keys) + _EPS)
            if DECAYS_COLUMNS:
                state *= factors[:, None]
            else:
                state *= factors
            recalled = tl.sum(keys[:, None] * state, 0)
            state += keys[:, None] * (strength * (values - recalled))[None, :]
            read = tl.sum(queries[:, None] * state, 0)
            tl.store(out + at * (HEADS * VALUE_DIM), read.to(out.dtype.element_ty), mask=is_value)
        row = tl.where(part == 0, saved_row, own_row).to(tl.int64)
        is_stored = (part == 1) | (split > first)
        tl.store(memory + row * memory_row + places, state, mask=in_state & is_stored)
