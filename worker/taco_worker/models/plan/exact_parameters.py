"""Parameters that no method at load quantizes."""

from __future__ import annotations

from collections.abc import Iterator

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Route
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace
from taco_worker.models.plan.slices import Slice


def exact_parameters(plan: ModelPlan) -> frozenset[str]:
    """The factors of routers, of the gates of recurrences, and of convolutions.

    A rounded factor of a router may choose another expert, and errors of a gate add up over a
    sequence. Gates may be products of two matrices (Kimi Linear).
    """
    found: set[str] = set()
    for part in (plan.embedding, *plan.layers, plan.final):
        exact: set[Slice] = set()  # columns that a later op reads exactly
        for op in reversed(part):
            written = {columns for columns in exact if _replaces(op, columns)}
            if isinstance(op, Linear) and written:
                found.add(op.weight)
                exact.add(op.x)
            elif isinstance(op, Convolve):
                found.add(op.weight)
            exact = exact - written | {*_read_exactly(op)}
    return frozenset(found)


def _replaces(op: Op, columns: Slice) -> bool:
    """Whether the op writes new values of all these columns; ops in place change the old ones."""
    return any(part.covers(columns) for part in op.writes) and not any(
        part.overlaps(columns) for part in op.reads
    )


def _read_exactly(op: Op) -> Iterator[Slice]:
    match op:
        case Route():
            yield op.logits
        case DeltaRule():
            yield from (op.decay, op.beta)
        case StateSpace():
            yield op.step
