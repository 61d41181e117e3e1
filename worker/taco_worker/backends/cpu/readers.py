"""Which ops of a plan read a value, and as which operands."""

from __future__ import annotations

from collections.abc import Mapping

from taco_worker.backends.cpu.lowered_ops import OperandKind
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice


class Readers:
    """The readers of columns after an op of a plan, which is given by its index.

    Args:
        kinds: of the operands of the matrices that products use, by parameter.
    """

    def __init__(self, plan: ModelPlan, kinds: Mapping[str, OperandKind]) -> None:
        self._ops = tuple(plan.ops)
        self._hidden = plan.hidden
        self._kinds = kinds

    def is_only(self, op: Op, part: Slice, index: int) -> bool:
        """Whether `op` alone reads the values that op `index` leaves in `part`."""
        readers = self._readers(part, index + 1)
        return len(readers) == 1 and readers[0] is op

    def operand_kind(self, part: Slice, index: int) -> OperandKind:
        """The operands as which op `index` can write `part`: its readers are products of one kind.

        Floats if there is another reader.
        """
        kinds = {self._kind_of_factor(op, part) for op in self._readers(part, index + 1)}
        return kinds.pop() if len(kinds) == 1 else OperandKind("f32")

    def is_read(self, part: Slice, index: int) -> bool:
        """Whether an op after op `index` reads the values that it leaves in `part`."""
        return bool(self._readers(part, index + 1))

    def has_adapted(self, part: Slice, index: int) -> bool:
        """Whether adapters read what op `index` leaves in `part`."""
        readers = self._readers(part, index + 1)
        return any(isinstance(op, Linear) and op.is_adapted for op in readers)

    def _kind_of_factor(self, op: Op, part: Slice) -> OperandKind:
        """The operands as which `op` reads `part`."""
        match op:
            case Linear(x=x, weight=weight) if x == part:
                return self._kinds[weight]
            case Experts(x=x, gate_up=gate_up) if x == part:
                return self._kinds[gate_up]
        return OperandKind("f32")

    def _readers(self, part: Slice, start: int) -> list[Op]:
        """The ops from `start` on that read the current values of `part`."""
        readers: list[Op] = []
        if part.overlaps(self._hidden):
            return [*self._ops[-1:]]  # it is returned
        for op in self._ops[start:]:
            if any(one.overlaps(part) for one in op.reads):
                readers.append(op)
            if any(one.covers(part) for one in op.writes):
                break
        return readers
