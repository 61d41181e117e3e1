"""The types of a model's matrices on the CPU kernels. Free of torch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain

from taco_worker.backends.cpu.lowered_ops import MatrixType
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.linear import HeadLinear, Linear
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.ops.recurrence import DeltaRule, StateSpace
from taco_worker.models.plan.slices import Slice


def matrix_types(
    plan: ModelPlan,
    number_type: MatrixType,
    quantization: str | None = None,
    *,
    quantizes_lm_head: bool = False,
    coded: Container[str] = (),
) -> dict[str, MatrixType]:
    """The type of each matrix that products use, by parameter.

    Routers are never quantized: a rounded weight may choose another expert. Nor are the gates of
    recurrences, whose errors add up over a sequence.

    Args:
        number_type: of matrices that are not quantized.
        quantization: "int8" for all others.
        coded: parameters that the checkpoint has as codes; an LM head among them stays as it is.
    """
    ops = list(chain(plan.ops, plan.logits))
    quantized: MatrixType = "i8" if quantization == "int8" else number_type
    types = {op.weight: quantized for op in ops if isinstance(op, Linear | HeadLinear)}
    for op in ops:
        if isinstance(op, Experts):
            types |= {op.gate_up: quantized, op.down: quantized}
    exact = {op.logits for op in ops if isinstance(op, Route)} | set(_gates(ops))
    types |= {
        op.weight: number_type
        for op in ops
        if isinstance(op, Linear) and any(op.out.covers(part) for part in exact)
    }
    if quantizes_lm_head:
        heads = [op.weight for op in plan.logits if isinstance(op, Linear)]
        types |= {name: "i8" for name in heads[-1:] if name not in coded}
    return types


def _gates(ops: Iterable[Op]) -> Iterator[Slice]:
    """The logits of the decays, steps and strengths of recurrences."""
    for op in ops:
        match op:
            case DeltaRule():
                yield from (op.decay, op.beta)
            case StateSpace():
                yield op.step
