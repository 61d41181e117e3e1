"""Lowers convolutions and linear recurrences for the CPU kernels."""

from __future__ import annotations

from taco_kernels.recurrence_limits import check_key_dim, check_width
from taco_worker.backends.cpu.lowered_ops import LoweredOp
from taco_worker.backends.cpu.readers import Readers
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace


def lower_convolve(op: Convolve) -> LoweredOp:
    """Raises ValueError if the kernels have no convolution of that width."""
    check_width(op.width)
    return LoweredOp(
        kind="convolve", x=op.x, out=op.out, index=op.entry, bias=op.bias, recurrence=op
    )


def lower_recurrence(op: DeltaRule | StateSpace, readers: Readers, index: int) -> LoweredOp:
    """Lower op `index` of the plan.

    Raises:
        ValueError: its keys are too long, or a later op reads what the kernel changes.
    """
    check_key_dim(op.key_dim)
    decay, beta = (op.step, None) if isinstance(op, StateSpace) else (op.decay, op.beta)
    lowered = LoweredOp(
        kind="recur",
        x=op.query,
        y=op.key,
        out=op.out,
        index=op.entry,
        recurrence=op,
        value=op.value,
        decay=decay,
        beta=beta,
    )
    if any(part != op.out and readers.is_read(part, index) for part in lowered.writes):
        raise ValueError(f"the CPU kernels change what an op after {op} reads")
    return lowered
