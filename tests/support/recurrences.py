"""Steps of convolutions and linear recurrences, and what their reference makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from taco_kernels.reference import recurrence as reference
from taco_worker.layers.ops import LayerOps
from taco_worker.layers.sequence_states import SequenceStates

_NUM_ROWS = 12


@dataclass(frozen=True)
class Step:
    """The sequences of a step, as in `SequenceStates`, and tokens of padding after them."""

    query_lens: Sequence[int]
    rows: Sequence[int]
    sources: Sequence[int]
    saved_tokens: Sequence[int]
    saved_rows: Sequence[int]
    num_padding: int = 0

    @classmethod
    def of_one(cls, query_len: int, source: int, row: int = 0) -> Step:
        return cls([query_len], [row], [source], [0], [0])

    @property
    def query_start(self) -> list[int]:
        return [0, *accumulate(self.query_lens)]

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens) + self.num_padding

    def states(self, device: torch.device, max_query_len: int = 0) -> SequenceStates:
        """`max_query_len`: in place of the lengths on the host, as in a CUDA graph."""
        start, rows, sources, saved_tokens, saved_rows = (
            torch.tensor(column, dtype=torch.int32, device=device)
            for column in (
                self.query_start,
                self.rows,
                self.sources,
                self.saved_tokens,
                self.saved_rows,
            )
        )
        lens = [max_query_len or length for length in self.query_lens]
        return SequenceStates(start, rows, sources, saved_tokens, saved_rows, lens)


# Sequences without tokens, which begin or continue; one shorter than a convolution; one that ends
# where its state is saved; one longer than a program's tile.
MIXED = Step(
    query_lens=(5, 0, 1, 2, 0, 21),
    rows=(1, 3, 0, 5, 11, 6),
    sources=(-1, -1, 0, 4, 9, 6),
    saved_tokens=(3, 0, 0, 2, 0, 18),
    saved_rows=(2, 0, 0, 7, 0, 8),
    num_padding=2,
)
DECODE = Step((1, 1, 1), (4, 0, 9), (4, -1, 3), (0, 0, 0), (0, 0, 0))
DRAFTS = Step((3, 2, 4), (4, 0, 9), (4, 6, -1), (1, 2, 3), (5, 1, 7))
EMPTY = Step((0, 0), (1, 2), (-1, 3), (0, 0), (0, 0))
STEPS = {"mixed": MIXED, "decode": DECODE, "drafts": DRAFTS, "empty": EMPTY}


class Recurrence(Protocol):
    """One op with random parameters."""

    @property
    def state_shape(self) -> tuple[int, ...]: ...

    def tokens(self, num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
        """Inputs by token: columns of a wider buffer."""
        ...

    def expected(self, tokens: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """The reference's outputs of one sequence, and its state after it."""
        ...

    def run(
        self, ops: LayerOps, tokens: Sequence[Tensor], memory: Tensor, states: SequenceStates
    ) -> Tensor: ...


@dataclass(frozen=True)
class Convolution:
    columns: int = 70
    width: int = 4
    has_bias: bool = True
    activation: str | None = "silu"

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.width - 1, self.columns

    def tokens(self, num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
        return _columns(num_tokens, dtype, (self.columns,))

    def expected(self, tokens: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = self._parameters(state)
        return reference.convolve(tokens[0], weight, bias, state, activation=self.activation)

    def run(
        self, ops: LayerOps, tokens: Sequence[Tensor], memory: Tensor, states: SequenceStates
    ) -> Tensor:
        weight, bias = self._parameters(memory)
        return ops.convolve(tokens[0], weight, bias, memory, states, activation=self.activation)

    def _parameters(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        weight = _random((self.columns, self.width), like, seed=1)
        return weight, _random((self.columns,), like, seed=2) if self.has_bias else None


@dataclass(frozen=True)
class Delta:
    heads: int = 4
    key_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    decays_columns: bool = False
    beta_scale: float = 1.0

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.key_dim, self.value_dim

    def tokens(self, num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
        keys = (self.key_heads, self.key_dim)
        decay = (self.heads, self.key_dim) if self.decays_columns else (self.heads,)
        values = (self.heads, self.value_dim)
        return _columns(num_tokens, dtype, keys, keys, values, decay, (self.heads,))

    def expected(self, tokens: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, decay, beta = tokens
        rates, bias = self._parameters(state)
        return reference.delta_rule(
            query, key, value, decay, beta, rates, bias, state, beta_scale=self.beta_scale
        )

    def run(
        self, ops: LayerOps, tokens: Sequence[Tensor], memory: Tensor, states: SequenceStates
    ) -> Tensor:
        query, key, value, decay, beta = tokens
        rates, bias = self._parameters(memory)
        return ops.delta_rule(
            *(query, key, value, decay, beta, rates, bias, memory, states),
            beta_scale=self.beta_scale,
        )

    def _parameters(self, like: Tensor) -> tuple[Tensor, Tensor]:
        decay = (self.heads, self.key_dim) if self.decays_columns else (self.heads,)
        rates = -_random((self.heads,), like, seed=1).abs()
        return rates, _random(decay, like, seed=2)


@dataclass(frozen=True)
class Space:
    heads: int = 4
    key_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    min_step: float = 0.0
    max_step: float = float("inf")

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.key_dim, self.value_dim

    def tokens(self, num_tokens: int, dtype: torch.dtype) -> list[Tensor]:
        keys, values = (self.key_heads, self.key_dim), (self.heads, self.value_dim)
        return _columns(num_tokens, dtype, keys, keys, values, (self.heads,))

    def expected(self, tokens: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, step = tokens
        return reference.state_space(
            *(query, key, value, step, *self._parameters(state), state),
            min_step=self.min_step,
            max_step=self.max_step,
        )

    def run(
        self, ops: LayerOps, tokens: Sequence[Tensor], memory: Tensor, states: SequenceStates
    ) -> Tensor:
        query, key, value, step = tokens
        rates, bias, skip = self._parameters(memory)
        return ops.state_space(
            *(query, key, value, step, rates, bias, skip, memory, states),
            min_step=self.min_step,
            max_step=self.max_step,
        )

    def _parameters(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rates, bias, skip = (_random((self.heads,), like, seed=seed) for seed in (1, 2, 3))
        return -rates.abs(), bias, skip


def make_memory(recurrence: Recurrence, step: Step, device: torch.device) -> Tensor:
    """Memory whose sources are random and all other rows NaN, a part of wider rows."""
    shape = recurrence.state_shape
    size = torch.Size(shape).numel()
    rows = torch.full((_NUM_ROWS, size + 32), torch.nan, device=device)
    memory = rows[:, 16 : 16 + size].unflatten(1, shape)
    for source, length in zip(step.sources, step.query_lens, strict=True):
        if source >= 0 and length:
            memory[source] = torch.randn(shape, device=device)
    return memory


def run_reference(
    recurrence: Recurrence, tokens: Sequence[Tensor], memory: Tensor, step: Step
) -> tuple[list[Tensor], Tensor]:
    """The outputs of each sequence that has tokens, and the memory afterwards."""
    memory, before, outputs = memory.clone(), memory.clone(), []
    for index, (first, past) in enumerate(pairwise(step.query_start)):
        if first == past:
            continue
        source, saved = step.sources[index], step.saved_tokens[index]
        state = torch.zeros_like(before[0]) if source < 0 else before[source]
        output, memory[step.rows[index]] = recurrence.expected(
            [x[first:past] for x in tokens], state
        )
        outputs.append(output)
        if saved:
            part = [x[first : first + saved] for x in tokens]
            memory[step.saved_rows[index]] = recurrence.expected(part, state)[1]
    return outputs, memory


def split(outputs: Tensor, step: Step) -> list[Tensor]:
    """The outputs of each sequence that has tokens."""
    lens = [length for length in step.query_lens if length]
    return [*outputs[: sum(lens)].split(lens)]


def run_cut(
    recurrence: Recurrence,
    ops: LayerOps,
    tokens: Sequence[Tensor],
    lengths: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Run a sequence in steps of these lengths; returns its outputs and its last state."""
    memory = make_memory(recurrence, Step.of_one(1, -1), device)
    outputs, first = [], 0
    for length in lengths:
        step = Step.of_one(length, 0 if first else -1)
        if length > 2:  # a saved state does not change the others
            step = replace(step, saved_tokens=[2], saved_rows=[1])
        part = [x[first : first + length] for x in tokens]
        outputs.append(recurrence.run(ops, part, memory, step.states(device)))
        first += length
    return torch.cat(outputs), memory[0]


def _columns(num_tokens: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    buffer = torch.randn(num_tokens, sum(sizes) + 5).to(dtype)
    parts = buffer[:, 3:-2].split(sizes, dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def _random(shape: tuple[int, ...], like: Tensor, *, seed: int) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return numbers.to(like.device)
