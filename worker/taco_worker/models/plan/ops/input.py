"""Columns that the caller of a step gives, such as hidden states of another model."""

from __future__ import annotations

from dataclasses import dataclass

from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class Input(Op):
    """Stores the columns of `ModelInput` in `out`; a plan has one such op at most."""

    out: Slice

    @property
    def reads(self) -> tuple[Slice, ...]:
        return ()

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)
