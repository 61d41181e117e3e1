"""Rotary position embedding (RoPE, Su et al. 2021) of some heads, in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice

RopeStyle = Literal["half", "interleaved"]


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotates `rotary_dim` columns of each head.

    Attributes:
        x: heads of `head_dim` columns each.
        offset: first rotated column of a head.
        style: pairs are (i, i + rotary_dim / 2) ("half") or (2i, 2i + 1) ("interleaved").
        table: name of the plan's rope table.
    """

    x: Slice
    head_dim: int
    rotary_dim: int
    table: str
    offset: int = 0
    style: RopeStyle = "half"

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def num_heads(self) -> int:
        return self.x.size // self.head_dim
