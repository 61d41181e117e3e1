"""Lowers the ops that work on each head by itself."""

from __future__ import annotations

from taco_worker.backends.cpu.lowered_ops import LoweredOp, MatrixType
from taco_worker.models.plan.ops.linear import HeadCopy, HeadLinear
from taco_worker.models.plan.slices import Slice


def lower_head_linear(op: HeadLinear, kind: MatrixType) -> LoweredOp:
    """The product; `y` is a buffer of operands, unless the matrix is f32."""
    name = f"heads.{op.num_heads}.{op.in_size}.{kind}"
    return LoweredOp(
        kind="head_linear",
        x=op.x,
        y=None if kind == "f32" else Slice(name, 0, op.in_size),
        out=op.out,
        matrix=op.weight,
        num_heads=op.num_heads,
        x_stride=op.x_stride,
        out_stride=op.out_stride,
    )


def lower_head_copy(op: HeadCopy) -> LoweredOp:
    return LoweredOp(
        kind="head_copy",
        x=op.x,
        out=op.out,
        group=op.size,
        num_heads=op.num_heads,
        x_stride=op.x_stride,
        out_stride=op.out_stride,
    )
