"""Convolutions and linear recurrences of a step's sequences in torch, one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from taco_kernels.reference import recurrence
from taco_worker.layers.sequence_states import SequenceStates

# The outputs of the tokens [first, past), and the state after them, from that before them.
_Run = Callable[[int, int, Tensor], tuple[Tensor, Tensor]]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    memory: Tensor,
    states: SequenceStates,
    *,
    activation: str | None,
) -> Tensor:
    def run(first: int, past: int, state: Tensor) -> tuple[Tensor, Tensor]:
        return recurrence.convolve(x[first:past], weight, bias, state, activation=activation)

    return _run_sequences(run, x, memory, states)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    rates: Tensor,
    decay_bias: Tensor,
    memory: Tensor,
    states: SequenceStates,
    *,
    beta_scale: float,
) -> Tensor:
    def run(first: int, past: int, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, d, s = (one[first:past] for one in (query, key, value, decay, beta))
        return recurrence.delta_rule(q, k, v, d, s, rates, decay_bias, state, beta_scale=beta_scale)

    return _run_sequences(run, value, memory, states)


def state_space(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    rates: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    memory: Tensor,
    states: SequenceStates,
    *,
    min_step: float,
    max_step: float,
) -> Tensor:
    def run(first: int, past: int, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, d = (one[first:past] for one in (query, key, value, step))
        return recurrence.state_space(
            q, k, v, d, rates, step_bias, skip, state, min_step=min_step, max_step=max_step
        )

    return _run_sequences(run, value, memory, states)


def _run_sequences(run: _Run, like: Tensor, memory: Tensor, states: SequenceStates) -> Tensor:
    """Run each sequence's tokens from its state, and store the states; outputs as `like`."""
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    sources = [
        torch.zeros_like(memory[0]) if source < 0 else memory[source].clone()
        for source in states.sources.tolist()
    ]
    columns = (states.query_start[1:], states.rows, states.saved_tokens, states.saved_rows)
    first = 0
    for state, past, row, saved, saved_row in zip(
        sources, *(column.tolist() for column in columns), strict=True
    ):
        if saved:
            out[first : first + saved], state = run(first, first + saved, state)
            memory[saved_row] = state
        if first + saved < past:
            out[first + saved : past], state = run(first + saved, past, state)
        if first < past:
            memory[row] = state
        first = past
    return out
