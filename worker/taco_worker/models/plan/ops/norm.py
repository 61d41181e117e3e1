"""RMSNorm and LayerNorm, over all columns or head by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from taco_worker.models.plan.ops.op import Op, Shape, optional
from taco_worker.models.plan.slices import Slice

NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class Norm(Op):
    """out = norm(x) * weight + bias; `out` may be `x`.

    Attributes:
        weight, bias: parameters, or None: 1 and 0.
        group: number of columns that are normed together, such as a head; None: all columns.
        shares_weight: weight and bias are [group], the same for each group; otherwise they are
            [x.size].
    """

    x: Slice
    out: Slice
    kind: NormKind
    eps: float
    weight: str | None = None
    bias: str | None = None
    group: int | None = None
    shares_weight: bool = True

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def weight_size(self) -> int:
        return self.group if self.group is not None and self.shares_weight else self.x.size

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return optional((self.weight, (self.weight_size,)), (self.bias, (self.weight_size,)))
