"""Fills the structs of convolutions and recurrences with the addresses of loaded weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from taco_kernels.cpu.recurrence import DELTA_RULE, STATE_SPACE
from taco_kernels.cpu.recurrence_structs import Convolution, Recurrence, StateBatch
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace


def convolution_struct(op: Convolve, taps: Tensor, bias: int | None, start: int) -> Convolution:
    """The convolution without a step's columns and sequences.

    Args:
        taps: float32 [width, columns], contiguous; the caller keeps it alive.
        bias: the address of its bias.
        start: the first number of its state.
    """
    return Convolution(
        columns=op.x.size,
        width=op.width,
        weight=taps.data_ptr(),
        bias=bias,
        has_silu=op.activation == "silu",
        batch=StateBatch(start=start),
    )


def recurrence_struct(
    op: DeltaRule | StateSpace, vectors: Mapping[str, Tensor], start: int
) -> Recurrence:
    """The recurrence without a step's columns and sequences; the caller keeps `vectors` alive."""
    struct = Recurrence(
        num_heads=op.num_heads,
        num_key_heads=op.num_key_heads,
        key_dim=op.key_dim,
        value_dim=op.value_dim,
        rates=vectors[op.rates].data_ptr(),
        batch=StateBatch(start=start),
    )
    match op:
        case DeltaRule():
            struct.kind = DELTA_RULE
            struct.bias = vectors[op.decay_bias].data_ptr()
            struct.max_number = op.beta_scale
            struct.decays_columns = op.decay.size != op.num_heads
        case StateSpace():
            struct.kind = STATE_SPACE
            struct.bias = vectors[op.step_bias].data_ptr()
            struct.skip = vectors[op.skip].data_ptr()
            struct.min_number, struct.max_number = op.min_step, op.max_step
    return struct
