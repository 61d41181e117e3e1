"""Fuses the ops of a plan for torch: pairs of ops that one kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.attend import WriteKV
from taco_worker.models.plan.ops.elementwise import Add
from taco_worker.models.plan.ops.norm import Norm
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.ops.rope import Rope
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class AddNorm:
    """x += y, then the norm of x."""

    y: Slice
    norm: Norm


@dataclass(frozen=True, slots=True)
class RotateAndWriteKV:
    """The rotation of queries and keys, and the write of keys and values."""

    query: Rope
    key: Rope
    write: WriteKV


TorchOp = Op | AddNorm | RotateAndWriteKV


@dataclass(frozen=True, slots=True)
class FusedPlan:
    """The ops of a step.

    Attributes:
        pending: per layer, columns that the next op adds to the stream before the stream is the
            layer's output; None: it already is.
    """

    embedding: tuple[TorchOp, ...]
    layers: tuple[tuple[TorchOp, ...], ...]
    final: tuple[TorchOp, ...]
    pending: tuple[Slice | None, ...]


def fuse(plan: ModelPlan) -> FusedPlan:
    """Fuse inside layers, and the last sum of a layer with the first norm after it."""
    carried: Add | None = None
    parts: list[tuple[TorchOp, ...]] = []
    pending: list[Slice | None] = []
    for ops in (plan.embedding, *plan.layers, plan.final):
        whole = list(ops) if carried is None else [carried, *ops]
        is_last = ops is plan.final
        carried = None
        if whole and not is_last and isinstance(last := whole[-1], Add) and _adds(plan, last):
            carried = last
            whole = whole[:-1]
        parts.append(tuple(_fused(whole)))
        pending.append(None if carried is None else carried.y)
    return FusedPlan(parts[0], tuple(parts[1:-1]), parts[-1], tuple(pending[1:-1]))


def _adds(plan: ModelPlan, op: Add) -> bool:
    return op.x == plan.stream and op.scale == 1.0


def _fused(ops: Sequence[Op]) -> list[TorchOp]:
    fused: list[TorchOp] = []
    index = 0
    while index < len(ops):
        match ops[index : index + 3]:
            case [Add(scale=1.0) as add, Norm(group=None) as norm, *_] if norm.x == add.x:
                fused.append(AddNorm(add.y, norm))
                index += 2
            case [Rope() as query, Rope() as key, WriteKV() as write] if _is_one(query, key, write):
                fused.append(RotateAndWriteKV(query, key, write))
                index += 3
            case [op, *_]:
                fused.append(op)
                index += 1
    return fused


def _is_one(query: Rope, key: Rope, write: WriteKV) -> bool:
    """Whether one kernel rotates both in the same way and writes what it rotated."""
    same = (query.head_dim, query.rotary_dim, query.offset, query.style, query.table) == (
        key.head_dim,
        key.rotary_dim,
        key.offset,
        key.style,
        key.table,
    )
    values = write.value
    return same and write.key == key.x and values is not None and values.size == key.x.size
