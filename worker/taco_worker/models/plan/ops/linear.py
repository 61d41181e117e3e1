"""Linear layers: one matrix for all columns, or one per head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taco_worker.models.plan.ops.op import Op, Shape, optional
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out = x W^T + b

    Attributes:
        weight: parameter [out.size, x.size].
        bias: parameter [out.size], or None.
        shard_unit: number of columns of `x` that stay together (of a head; 1: none do) where
            tensor-parallel processes divide the columns of `x`; None: they do not divide them.
        is_adapted: LoRA adapters, which the tokens of a step name, add to the product.
    """

    x: Slice
    out: Slice
    weight: str
    bias: str | None = None
    shard_unit: int | None = None
    is_adapted: bool = False

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        size = self.out.size
        return optional((self.weight, (size, self.x.size)), (self.bias, (size,)))

    @property
    def flops_per_token(self) -> int:
        return 2 * self.x.size * self.out.size


@dataclass(frozen=True, slots=True)
class HeadLinear(Op):
    """A separate product for each head: out[h] = x[h] W[h]^T (MLA's absorbed products).

    Attributes:
        x: one group of columns per head, `x_stride` columns apart and `in_size` wide.
        out: likewise; the columns between the groups stay.
        weight: parameter [num_heads, out_size, in_size].
    """

    x: Slice
    out: Slice
    weight: str
    num_heads: int
    in_size: int
    out_size: int
    x_stride: int
    out_stride: int

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return {self.weight: (self.num_heads, self.out_size, self.in_size)}

    @property
    def flops_per_token(self) -> int:
        return 2 * self.num_heads * self.in_size * self.out_size


@dataclass(frozen=True, slots=True)
class HeadCopy(Op):
    """Copies `size` columns of each head.

    Attributes:
        x: one group of columns per head, `x_stride` columns apart.
        out: likewise; the columns between the groups stay.
    """

    x: Slice
    out: Slice
    num_heads: int
    size: int
    x_stride: int
    out_stride: int

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)


def head_columns(x: Slice, num_heads: int, stride: int, start: int, size: int) -> Slice:
    """The columns from those of the first head to those of the last.

    Args:
        x: heads of `stride` columns each.
        start, size: the columns of a head.
    """
    return x.columns(start, (num_heads - 1) * stride + size)
