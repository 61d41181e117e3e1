"""Convolutions and linear recurrences on the CPU (`taco_kernels.reference.recurrence`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from taco_kernels.cpu.recurrence_structs import (
    Convolution,
    Recurrence,
    StateBatch,
    StateRows,
    TokenColumns,
)
from taco_kernels.library import CpuKernels
from taco_kernels.recurrence_limits import check_key_dim, check_width

DELTA_RULE, STATE_SPACE = 0, 1


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """The tokens of some sequences, and the rows of their states; contiguous int32.

    Attributes:
        memory: contiguous float32 [num_rows, size of a state].
        query_start: [num_seqs + 1], first token of each sequence.
        rows: [num_seqs], get the states after the tokens.
        sources: [num_seqs], hold those before them; negative: zeros.
        saved_tokens: [num_seqs], tokens after which the state is stored in `saved_rows` too; 0: no.
    """

    memory: Tensor
    query_start: Tensor
    rows: Tensor
    sources: Tensor
    saved_tokens: Tensor
    saved_rows: Tensor

    def struct(self) -> StateBatch:
        numbers = (self.rows, self.sources, self.saved_tokens, self.saved_rows)
        for array in (self.query_start, *numbers):
            if array.dtype != torch.int32 or not array.is_contiguous():
                raise ValueError("rows of sequences must be contiguous int32")
        if self.memory.dtype != torch.float32 or not self.memory.is_contiguous():
            raise ValueError("states must be contiguous float32")
        addresses = (array.data_ptr() for array in numbers)
        states = StateRows(self.memory.data_ptr(), self.memory.shape[1], *addresses)
        return StateBatch(self.rows.numel(), self.query_start.data_ptr(), states, 0)


def convolve(
    kernels: CpuKernels,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sequences: SequenceRows,
    *,
    has_silu: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Convolve each column of float32 x [num_tokens, columns].

    Args:
        weight: float32 [columns, width], contiguous.
        bias: float32 [columns], contiguous.
        out: as x, may be x.

    Raises:
        ValueError: the width is not supported, or a tensor has another type or strides.
    """
    columns, width = weight.shape
    check_width(width)
    out = torch.empty_like(x) if out is None else out
    taps = weight.T.contiguous()
    call = Convolution(
        columns,
        width,
        taps.data_ptr(),
        None if bias is None else bias.data_ptr(),
        has_silu,
        _columns(x),
        _columns(out),
        sequences.struct(),
    )
    kernels.lib.taco_convolve(kernels.pool, ctypes.byref(call))
    return out


def delta_rule(
    kernels: CpuKernels,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    rates: Tensor,
    decay_bias: Tensor,
    sequences: SequenceRows,
    *,
    beta_scale: float = 1.0,
) -> Tensor:
    """The gated delta rule over sequences, float32 [num_tokens, num_heads, value_dim].

    Shapes are those of the reference; decay is [num_tokens, num_heads], or [num_tokens, num_heads,
    key_dim]. All but value are changed.

    Raises:
        ValueError: the keys are too long, or a tensor has another type or strides.
    """
    call, out = _recurrence(DELTA_RULE, query, key, value, sequences)
    call.rates, call.bias = rates.data_ptr(), decay_bias.data_ptr()
    call.max_number = beta_scale
    call.decays_columns = decay.ndim == 3
    call.decay, call.beta = _columns(decay), _columns(beta)
    kernels.lib.taco_recur(kernels.pool, ctypes.byref(call))
    return out


def state_space(
    kernels: CpuKernels,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    rates: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    sequences: SequenceRows,
    *,
    min_step: float = 0.0,
    max_step: float = float("inf"),
) -> Tensor:
    """The recurrence of Mamba 2 over sequences, float32 [num_tokens, num_heads, value_dim].

    Shapes are those of the reference. `step` is changed.

    Raises:
        ValueError: as `delta_rule`.
    """
    call, out = _recurrence(STATE_SPACE, query, key, value, sequences)
    call.rates, call.bias, call.skip = rates.data_ptr(), step_bias.data_ptr(), skip.data_ptr()
    call.min_number, call.max_number = min_step, max_step
    call.decay = _columns(step)
    kernels.lib.taco_recur(kernels.pool, ctypes.byref(call))
    return out


def _recurrence(
    kind: int, query: Tensor, key: Tensor, value: Tensor, sequences: SequenceRows
) -> tuple[Recurrence, Tensor]:
    num_heads, value_dim = value.shape[1:]
    num_key_heads, key_dim = key.shape[1:]
    check_key_dim(key_dim)
    out = torch.empty_like(value)
    call = Recurrence(kind, num_heads, num_key_heads, key_dim, value_dim)
    call.query, call.key, call.value = _columns(query), _columns(key), _columns(value)
    call.out, call.batch = _columns(out), sequences.struct()
    return call, out


def _columns(x: Tensor) -> TokenColumns:
    if x.dtype != torch.float32 or not x[:1].is_contiguous():
        raise ValueError("tokens must be float32 with contiguous columns")
    return TokenColumns(x.data_ptr(), x.stride(0))
