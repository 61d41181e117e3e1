"""Lowers a model plan for the CPU kernels: chooses fusions, operand buffers and stages.

Fusions, with the same bits as the separate ops but for one:

- a norm writes the operands of the product that reads it;
- a product applies the activation (and gate) that follows, and adds to the stream; a gate of silu
  is only as exact as operands of 16 or 8 bits are (`silu_for_bf16`), if the product has such;
- attention and activations write operands of bf16 products;
- rotations of neighbouring heads are one op.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from taco_worker.backends.cpu.head_products import lower_head_copy, lower_head_linear
from taco_worker.backends.cpu.logits_head import LogitsHead
from taco_worker.backends.cpu.lowered_ops import (
    Epilogue,
    LoweredBuffer,
    LoweredOp,
    LoweredProgram,
    MatrixType,
    OperandKind,
)
from taco_worker.backends.cpu.readers import Readers
from taco_worker.backends.cpu.recurrences import lower_convolve, lower_recurrence
from taco_worker.backends.cpu.segments import segments_of
from taco_worker.backends.cpu.stages import (
    cut_into_stages,
    layer_ends,
    local_buffers,
    with_live_buffers,
)
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.activation import Activation, ActivationKind
from taco_worker.models.plan.ops.attend import Attend, WriteKV
from taco_worker.models.plan.ops.elementwise import Add, Cap, Clip, Gate, Multiply, Scale, Xielu
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.input import Input
from taco_worker.models.plan.ops.linear import HeadCopy, HeadLinear, Linear
from taco_worker.models.plan.ops.norm import Norm
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, Recurrence, StateSpace
from taco_worker.models.plan.ops.rope import Rope
from taco_worker.models.plan.slices import Slice

_HIDDEN = "hidden"


def lower_plan(
    plan: ModelPlan, types: Mapping[str, MatrixType], orders: Mapping[str, str] | None = None
) -> LoweredProgram:
    """Lower a plan.

    Args:
        types: of the matrices that products use, by parameter.
        orders: of the int8 matrices whose columns have another order, one of those with the same.

    Raises:
        ValueError: the plan has an op that the CPU kernels lack.
    """
    orders = orders or {}
    kinds = {name: OperandKind(kind, orders.get(name)) for name, kind in types.items()}
    lowering = _Lowering(plan, kinds)
    lowering.run()
    ops = with_live_buffers(lowering.lowered)
    stages = cut_into_stages(ops)
    local = local_buffers(ops, stages) - {_HIDDEN}
    restricted = {name for op in ops for name in op.live}
    buffers = {
        name: LoweredBuffer(
            columns,
            kind,
            lowering.num_groups.get(name, 1),
            name in local,
            name in lowering.has_tail,
            name in restricted,
        )
        for name, (columns, kind) in lowering.buffers.items()
    }
    head = LogitsHead(plan)
    return LoweredProgram(
        buffers,
        tuple(ops),
        tuple(stages),
        _HIDDEN,
        head.projection,
        head.matrix,
        head.scale,
        head.cap,
        frozenset(lowering.gated),
        segments_of(plan, types),
    )


class _Lowering:
    """Turns the ops of a plan into those of a program, in order.

    Attributes:
        lowered: the ops so far.
        buffers: columns and type of each buffer that they use.
        has_tail: operand buffers whose padding kernels do not write.
        num_groups: of buffers whose rows are several rows of operands.
        gated: matrices of gated pairs.
    """

    def __init__(self, plan: ModelPlan, kinds: Mapping[str, OperandKind]) -> None:
        self.lowered: list[LoweredOp] = []
        self.buffers: dict[str, tuple[int, MatrixType]] = {}
        self.has_tail: set[str] = set()
        self.num_groups: dict[str, int] = {}
        self.gated: set[str] = set()
        self._plan = plan
        self._kinds = kinds
        self._readers = Readers(plan, kinds)
        self._ops = tuple(plan.ops)
        self._index = 0
        # Operand buffers that hold the current values of some columns.
        self._operands: dict[tuple[Slice, OperandKind], Slice] = {}

    def run(self) -> None:
        plan = self._plan
        ends = layer_ends(plan)
        writes = [i for i, op in enumerate(self._ops) if isinstance(op, WriteKV | Recurrence)]
        last_write = max(writes, default=-1)
        first_final = len(self._ops) - len(plan.final)
        while self._index < len(self._ops):
            if self._index == first_final:
                self._restrict_finally()
            index = self._index
            self._lower(self._ops[index])
            self._index += 1
            if index == last_write:
                kept_later = [layer for end, layer in ends.items() if end > index]
                self._restrict(first_kept=min(kept_later, default=plan.num_layers))
            if (layer := ends.get(self._index)) is not None:
                self._emit(LoweredOp(kind="keep", x=plan.stream, index=layer))
        if not plan.final:
            self._restrict_finally()
        if plan.hidden.buffer != _HIDDEN:
            out = Slice(_HIDDEN, 0, plan.hidden.size)
            self._emit(LoweredOp(kind="copy", x=plan.hidden, out=out))

    def _lower(self, op: Op) -> None:
        match op:
            case Embed():
                self._embed(op)
            case Input():
                self._emit(LoweredOp(kind="input", out=op.out))
            case Norm():
                self._norm(op)
            case Linear():
                self._linear(op)
            case HeadLinear():
                self._head_linear(op)
            case HeadCopy():
                self._emit(lower_head_copy(op))
            case Rope():
                self._rope(op)
            case WriteKV():
                self._emit(LoweredOp(kind="write_kv", x=op.key, y=op.value, index=op.entry))
            case Attend():
                self._attend(op)
            case Activation():
                self._emit(
                    LoweredOp(
                        kind="activation",
                        x=op.x,
                        out=op.out,
                        activation=op.kind,
                        is_gated=op.gated,
                        alpha=op.alpha,
                        factor=_limit(op),
                    )
                )
            case Add():
                self._emit(LoweredOp(kind="add", x=op.x, y=op.y, factor=op.scale))
            case Scale():
                self._emit(LoweredOp(kind="scale", x=op.x, factor=op.factor))
            case Cap():
                self._emit(LoweredOp(kind="cap", x=op.x, factor=op.cap))
            case Clip():
                self._emit(LoweredOp(kind="clip", x=op.x, factor=op.limit))
            case Xielu():
                self._emit(LoweredOp(kind="xielu", x=op.x, weight=op.weight))
            case Gate():
                self._emit(LoweredOp(kind="gate", x=op.x, y=op.gate))
            case Multiply():
                self._emit(LoweredOp(kind="multiply", x=op.x, y=op.y))
            case Convolve():
                self._emit(lower_convolve(op))
            case DeltaRule() | StateSpace():
                self._emit(lower_recurrence(op, self._readers, self._index))
            case Route():
                route = LoweredOp(
                    kind="route", x=op.logits, ids=op.ids, weights=op.weights, route=op
                )
                self._emit(route)
            case Experts():
                self._experts(op)
            case _:
                raise ValueError(f"the CPU kernels have no {type(op).__name__}")

    def _embed(self, op: Embed) -> None:
        # A step may give the embeddings of tokens, which are stored, never added.
        target = None if op.index == "tokens" else self._take_sum(op.out)
        self._emit(
            LoweredOp(
                kind="embed",
                out=target or op.out,
                table=op.table,
                indexes_positions=op.index == "positions",
                offset=op.offset,
                adds=target is not None,
            )
        )

    def _norm(self, op: Norm) -> None:
        kind = self._readers.operand_kind(op.out, self._index)
        if kind.type == "i8" and self._readers.has_adapted(op.out, self._index):
            kind = OperandKind("f32")  # of which both kinds of operands are made
        is_whole = op.group is None or op.group == op.x.size
        out = op.out
        if writes_operands := kind.type != "f32" and is_whole:
            out = self._new_operands(op.out, kind)
        group = op.group or op.x.size
        self._emit(
            LoweredOp(
                kind="norm",
                x=op.x,
                out=out,
                norm=op.kind,
                eps=op.eps,
                weight=op.weight,
                bias=op.bias,
                group=group,
                weight_step=0 if op.shares_weight else group,
                order=kind.order if writes_operands else None,
            ),
            op.out,
        )

    def _linear(self, op: Linear) -> None:
        kind = self._kinds[op.weight]
        x = self._encoded(op.x, kind)
        out = op.out
        epilogue: Epilogue = "store"
        activation: ActivationKind | Literal["none"] = "none"
        alpha = limit = 0.0
        following = self._next()
        if isinstance(following, Activation) and self._can_apply(following, op.out, x):
            self._index += 1
            out, activation = following.out, following.kind
            alpha, limit = following.alpha, _limit(following)
            if following.gated:
                epilogue = "gate_mul"
                self.gated.add(op.weight)
        elif (target := self._take_sum(op.out, x)) is not None:
            out, epilogue = target, "add"
        # A and B are not quantized, whatever the weight is.
        adapted_x = None
        if op.is_adapted:
            adapted_x = op.x if kind.type == "f32" else self._encoded(op.x, OperandKind("bf16"))
        written = out
        if epilogue != "add":
            written = self._operands_for_readers(out, encodes_int8=epilogue == "gate_mul")
        lowered = LoweredOp(
            kind="linear",
            x=x,
            y=adapted_x,
            out=written,
            matrix=op.weight,
            bias=op.bias,
            epilogue=epilogue,
            activation=activation,
            alpha=alpha,
            factor=limit,
            is_adapted=op.is_adapted,
        )
        self._emit(lowered, out)

    def _head_linear(self, op: HeadLinear) -> None:
        lowered = lower_head_linear(op, kind := self._kinds[op.weight].type)
        if lowered.y is not None:
            self.buffers[lowered.y.buffer] = (op.in_size, kind)
            self.num_groups[lowered.y.buffer] = op.num_heads
        self._emit(lowered)

    def _rope(self, op: Rope) -> None:
        x = op.x
        following = self._next()
        while isinstance(following, Rope) and _continues(op, x, following):
            x = Slice(x.buffer, x.start, x.size + following.x.size)
            self._index += 1
            following = self._next()
        self._emit(
            LoweredOp(
                kind="rope",
                x=x,
                group=op.head_dim,
                offset=op.offset,
                rotary_dim=op.rotary_dim,
                rope_table=op.table,
                rope_style=op.style,
            )
        )

    def _attend(self, op: Attend) -> None:
        self._emit(
            LoweredOp(
                kind="attend",
                x=op.query,
                out=self._operands_for_readers(op.out, encodes_int8=True),
                index=op.entry,
                attend=op,
            ),
            op.out,
        )

    def _experts(self, op: Experts) -> None:
        x = self._encoded(op.x, self._kinds[op.gate_up])
        target = self._take_sum(op.out, x)
        self._emit(
            LoweredOp(
                kind="experts",
                x=x,
                out=target or op.out,
                adds=target is not None,
                ids=op.ids,
                weights=op.weights,
                experts=op,
            )
        )

    def _restrict(self, first_kept: int) -> None:
        """Restrict unless a step keeps the output of `first_kept` or of a later layer."""
        self._emit(LoweredOp(kind="restrict_rows", index=first_kept))

    def _restrict_finally(self) -> None:
        self._emit(LoweredOp(kind="restrict_rows", is_final=True))

    def _emit(self, op: LoweredOp, value: Slice | None = None) -> None:
        """Append an op.

        Args:
            value: the plan's columns that `op.out` holds, if that is a buffer of operands.
        """
        for part in (*op.writes, *((value,) if value is not None else ())):
            for key in [key for key in self._operands if key[0].overlaps(part)]:
                if self._operands[key] != op.out:
                    del self._operands[key]
        for part in (*op.reads, *op.writes):
            self.buffers.setdefault(
                part.buffer, (self._plan.buffers.get(part.buffer, part.size), "f32")
            )
        self.lowered.append(op)

    def _next(self) -> Op | None:
        following = self._index + 1
        return self._ops[following] if following < len(self._ops) else None

    def _can_apply(self, activation: Activation, y: Slice, x: Slice) -> bool:
        """Whether the product of `x` that writes `y` can write the activation's output instead."""
        return (
            activation.x == y
            and not activation.out.overlaps(x)
            and self._readers.is_only(activation, y, self._index)
        )

    def _take_sum(self, y: Slice, x: Slice | None = None) -> Slice | None:
        """If the next op alone reads `y` and adds it to columns, skip that op; these columns.

        Args:
            x: what the current op reads; it cannot write there before all is read.
        """
        following = self._next()
        if not isinstance(following, Add) or following.y != y or following.scale != 1.0:
            return None
        if x is not None and following.x.overlaps(x):
            return None
        if not self._readers.is_only(following, y, self._index):
            return None
        self._index += 1
        return following.x

    def _encoded(self, x: Slice, kind: OperandKind) -> Slice:
        """`x` as operands; they are written if no op wrote them before."""
        if kind.type == "f32":
            return x
        if (x, kind) not in self._operands:
            source = self._operands.get((x, OperandKind("bf16")), x)
            out = self._new_operands(x, kind)
            self._emit(LoweredOp(kind="encode", x=source, out=out, order=kind.order))
        return self._operands[x, kind]

    def _operands_for_readers(self, out: Slice, *, encodes_int8: bool) -> Slice:
        """Where the current op writes `out`: as bfloat16 operands, or as floats.

        Args:
            encodes_int8: also write such operands for products of int8. Int8 has scales of whole
                rows, so it is encoded from them; floats would take twice the memory.
        """
        kind = self._readers.operand_kind(out, self._index)
        if kind.type == "bf16":
            written = self._new_operands(out, kind)
            self.has_tail.add(written.buffer)
            return written
        if kind.type == "i8" and encodes_int8:
            return self._new_operands(out, OperandKind("bf16"))
        return out

    def _new_operands(self, part: Slice, kind: OperandKind) -> Slice:
        """The operands of `part`, instead of those in another order."""
        name = f"{part.buffer}.{part.start}.{part.size}.{kind.type}"
        self.buffers[name] = (part.size, kind.type)
        operands = Slice(name, 0, part.size)
        for key in [key for key, slice_ in self._operands.items() if slice_ == operands]:
            del self._operands[key]
        self._operands[part, kind] = operands
        return operands


def _limit(op: Activation) -> float:
    return math.inf if op.limit is None else op.limit


def _continues(rope: Rope, x: Slice, following: Rope) -> bool:
    """Whether `following` rotates the heads right after `x` in the same way."""
    return (
        following.x.buffer == x.buffer
        and following.x.start == x.start + x.size
        and (following.head_dim, following.rotary_dim, following.offset)
        == (rope.head_dim, rope.rotary_dim, rope.offset)
        and (following.table, following.style) == (rope.table, rope.style)
    )
