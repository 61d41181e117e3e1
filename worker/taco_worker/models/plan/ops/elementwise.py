"""Sums, products, factors, caps and gates of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taco_worker.models.plan.ops.op import Op, Shape
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class Add(Op):
    """x += scale * y"""

    x: Slice
    y: Slice
    scale: float = 1.0

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x, self.y)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class InPlace(Op):
    """An op that changes the columns x and reads no others."""

    x: Slice

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class Scale(InPlace):
    """x *= factor"""

    factor: float


@dataclass(frozen=True, slots=True)
class Cap(InPlace):
    """x = cap * tanh(x / cap) (Gemma 2)"""

    cap: float


@dataclass(frozen=True, slots=True)
class Clip(InPlace):
    """x limited to [-limit, limit] (`clip_qkv` of OLMo)"""

    limit: float


@dataclass(frozen=True, slots=True)
class Xielu(InPlace):
    """x = xIELU(x), an activation with learned numbers (Huang and Schlag 2024; Apertus)

    Attributes:
        weight: parameter [4]; `taco_kernels.reference.elementwise.xielu` has the numbers.
    """

    weight: str

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return {self.weight: (4,)}


@dataclass(frozen=True, slots=True)
class Multiply(Op):
    """x *= y"""

    x: Slice
    y: Slice

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x, self.y)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.x,)


@dataclass(frozen=True, slots=True)
class Gate(Op):
    """x *= sigmoid(gate), with one gate column for all columns of x, or one for each."""

    x: Slice
    gate: Slice

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x, self.gate)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.x,)
