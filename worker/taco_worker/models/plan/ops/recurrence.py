"""Ops whose output depends on a state of the sequence: convolutions and linear recurrences.

A state summarizes all earlier tokens in memory of a fixed size. It takes the place of KV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from taco_worker.models.plan.ops.op import Op, Shape, optional
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The state of one op for a sequence: float32 numbers.

    Attributes:
        shape: what the op documents.
    """

    shape: Shape

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Convolve(Op):
    """A causal convolution of each column over its sequence, then an activation.

    Attributes:
        out: [x.size]; may be the same columns as `x`.
        entry: index of the state, [width - 1, x.size]: the latest inputs, oldest first.
        weight: parameter [x.size, width], the factor of the latest token last.
        bias: parameter [x.size], or None.
        width: tokens that a token reads, itself included.
    """

    x: Slice
    out: Slice
    entry: int
    weight: str
    bias: str | None
    width: int
    activation: Literal["silu"] | None = None

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        size = self.x.size
        return optional((self.weight, (size, self.width)), (self.bias, (size,)))

    @property
    def state(self) -> StateEntry:
        return StateEntry((self.width - 1, self.x.size))

    @property
    def flops_per_token(self) -> int:
        return 2 * self.width * self.x.size


@dataclass(frozen=True, slots=True)
class DeltaRule(Op):
    """Linear attention with the gated delta rule (Yang et al. 2024, "Gated Delta Networks").

    `taco_kernels.reference.recurrence.delta_rule` has the equations.

    Attributes:
        query, key: [num_key_heads * key_dim]; each is shared by neighbouring heads.
        value, out: [num_heads * value_dim].
        decay: logits of the decay, one per head or one per column of its key (Kimi Linear).
        beta: logits of the update's strength, [num_heads].
        entry: index of the state, [num_heads, key_dim, value_dim].
        rates: parameter [num_heads], negative: factors of the decay.
        decay_bias: parameter [decay.size].
        beta_scale: the update's greatest strength.
    """

    query: Slice
    key: Slice
    value: Slice
    decay: Slice
    beta: Slice
    out: Slice
    entry: int
    rates: str
    decay_bias: str
    num_heads: int
    num_key_heads: int
    beta_scale: float = 1.0

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.query, self.key, self.value, self.decay, self.beta)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return {self.rates: (self.num_heads,), self.decay_bias: (self.decay.size,)}

    @property
    def key_dim(self) -> int:
        return self.key.size // self.num_key_heads

    @property
    def value_dim(self) -> int:
        return self.value.size // self.num_heads

    @property
    def state(self) -> StateEntry:
        return StateEntry((self.num_heads, self.key_dim, self.value_dim))

    @property
    def flops_per_token(self) -> int:
        return 7 * self.state.size


@dataclass(frozen=True, slots=True)
class StateSpace(Op):
    """A state space layer of Mamba 2 (Dao and Gu 2024, "Transformers are SSMs").

    `taco_kernels.reference.recurrence.state_space` has the equations.

    Attributes:
        query, key: [num_key_heads * key_dim], often called C and B; each is shared by neighbouring
            heads.
        value, out: [num_heads * value_dim].
        step: logits of the step size, [num_heads].
        entry: index of the state, [num_heads, key_dim, value_dim].
        rates: parameter [num_heads], negative: factors of the decay.
        step_bias: parameter [num_heads].
        skip: parameter [num_heads]: factors of the value in the output.
        min_step, max_step: limits of the step size.
    """

    query: Slice
    key: Slice
    value: Slice
    step: Slice
    out: Slice
    entry: int
    rates: str
    step_bias: str
    skip: str
    num_heads: int
    num_key_heads: int
    min_step: float = 0.0
    max_step: float = float("inf")

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.query, self.key, self.value, self.step)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return dict.fromkeys((self.rates, self.step_bias, self.skip), (self.num_heads,))

    @property
    def key_dim(self) -> int:
        return self.key.size // self.num_key_heads

    @property
    def value_dim(self) -> int:
        return self.value.size // self.num_heads

    @property
    def state(self) -> StateEntry:
        return StateEntry((self.num_heads, self.key_dim, self.value_dim))

    @property
    def flops_per_token(self) -> int:
        return 5 * self.state.size


Recurrence = Convolve | DeltaRule | StateSpace
