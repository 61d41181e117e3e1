"""Whether the codes of a model multiply int8 activations, from headers, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from taco_kernels.code_layout import takes_int8
from taco_kernels.panels import PANEL
from taco_worker.models.code_segments import CodeSegment
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.linear import Linear


def check_int8_activations(plan: ModelPlan, codes: Mapping[str, Sequence[CodeSegment]]) -> None:
    """Check that all codes multiply int8 activations on the CPU kernels of some machine.

    Matrices that the kernels may have to dequantize are left to the worker, and so are codes that
    AMX alone does not multiply.

    Raises:
        ValueError: a matrix of codes does not allow it.
    """
    ops = list(chain(plan.ops, plan.logits))
    logits = {op.logits for op in ops if isinstance(op, Route)}
    names = {op.weight for op in ops if isinstance(op, Linear) and op.out not in logits}
    experts = {name for op in ops if isinstance(op, Experts) for name in (op.gate_up, op.down)}
    names = (names | experts) - {op.table for op in ops if isinstance(op, Embed)}
    for name in sorted(names & codes.keys()):
        n, k = plan.parameters[name].shape[-2:]
        if n % (2 * PANEL) or any(segment.start % PANEL for segment in codes[name]):
            continue
        for segment in codes[name]:
            layout = segment.layout
            is_unordered = name in experts and layout is not None and layout.has_column_groups
            if layout is None or not takes_int8(layout, k) or is_unordered:
                raise no_int8_activations(name)


def no_int8_activations(parameter: str) -> ValueError:
    """The error of a matrix whose codes do not multiply int8 activations."""
    return ValueError(
        f"the codes of {parameter} do not multiply int8 activations: int8 needs integers in groups "
        "of a multiple of 16 columns (with AMX of 64, and without minima), and experts without "
        "activation order; use quantized_activations auto"
    )
