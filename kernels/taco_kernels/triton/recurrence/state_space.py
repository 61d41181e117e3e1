"""The recurrence of Mamba 2 over a step's sequences, token by token, one launch.

Reference: `taco_kernels.reference.recurrence.state_space`.
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


def state_space(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    rates: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    memory: Tensor,
    states: SequenceRows,
    *,
    min_step: float,
    max_step: float,
) -> Tensor:
    """The recurrence of Mamba 2 (Dao and Gu 2024, "Transformers are SSMs", section 5) in float32.

    A token's bits do not depend on how its sequence is cut into steps.

    Args:
        query, key: [num_tokens, num_key_heads, key_dim]; each head is shared by neighbouring heads
            of the value. The last stride of these and the following two must be 1.
        value: [num_tokens, num_heads, value_dim].
        step: [num_tokens, num_heads].
        rates, step_bias, skip: [num_heads]; the rates are negative.
        memory: float32 [num_rows, num_heads, key_dim, value_dim], of which each row is contiguous.
        min_step, max_step: limits of the step size.

    Returns:
        [num_tokens, num_heads, value_dim] in value's dtype, contiguous.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    check_heads(query, key, value)
    num_tokens, num_heads, value_dim = value.shape
    num_key_heads, key_dim = key.shape[1:]
    check_tokens("step", step, (num_tokens, num_heads))
    for name, parameter in (("rates", rates), ("step_bias", step_bias), ("skip", skip)):
        check_parameter(name, parameter, (num_heads,))
    check_memory(memory, (num_heads, key_dim, value_dim))
    arguments = row_arguments(states)
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    num_seqs = len(states.rows)
    if num_tokens == 0 or num_seqs == 0:
        return out
    options = tile_options(key_dim, value_dim)
    _state_space_kernel[(triton.cdiv(value_dim, options["BLOCK"]), num_heads, num_seqs)](
        query,
        key,
        value,
        step,
        rates,
        step_bias,
        skip,
        out,
        memory,
        *arguments,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        step.stride(0),
        memory.stride(0),
        float(min_step),
        float(max_step),
        HEADS=num_heads,
        HEADS_PER_KEY=num_heads // num_key_heads,
        **options,
    )
    return out


@triton.jit
def _state_space_kernel(
    query,
    key,
    value,
    step,
    rates,
    step_bias,
    skip,
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
    step_token,
    memory_row,
    min_step,
    max_step,
    HEADS: tl.constexpr,
    HEADS_PER_KEY: tl.constexpr,
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
    bias = tl.load(step_bias + head).to(tl.float32)
    passed = tl.load(skip + head).to(tl.float32)

    # The tokens before the state to save, and those after it, in one loop's code: equal bits.
    for part in range(2):
        begin = tl.where(part == 0, first, split)
        end = tl.where(part == 0, split, past)
        for token in tl.range(begin, end, num_stages=3):
            at = tl.cast(token, tl.int64)
            queries = tl.load(query + at * query_token, mask=is_key, other=0.0).to(tl.float32)
            keys = tl.load(key + at * key_token, mask=is_key, other=0.0).to(tl.float32)
            values = tl.load(value + at * value_token, mask=is_value, other=0.0).to(tl.float32)
            size = softplus(tl.load(step + at * step_token + head).to(tl.float32) + bias)
            size = tl.where(size < min_step, min_step, size)
            size = tl.where(size > max_step, max_step, size)
            state *= tl.exp(rate * size)
            state += keys[:, None] * (size * values)[None, :]
            read = tl.sum(queries[:, None] * state, 0) + passed * values
            tl.store(out + at * (HEADS * VALUE_DIM), read.to(out.dtype.element_ty), mask=is_value)
        row = tl.where(part == 0, saved_row, own_row).to(tl.int64)
        is_stored = (part == 1) | (split > first)
        tl.store(memory + row * memory_row + places, state, mask=in_state & is_stored)
