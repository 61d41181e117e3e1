"""The types of a model's matrices on the CPU kernels. Free of torch."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain

from taco_worker.backends.cpu.lowered_ops import MatrixType
from taco_worker.models.plan.exact_parameters import exact_parameters
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.ops.linear import HeadLinear, Linear


def matrix_types(
    plan: ModelPlan,
    number_type: MatrixType,
    quantization: str | None = None,
    *,
    quantizes_lm_head: bool = False,
    coded: Container[str] = (),
) -> dict[str, MatrixType]:
    """The type of each matrix that products use, by parameter.

    Those of `exact_parameters` are never quantized.

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
    types |= dict.fromkeys(exact_parameters(plan) & types.keys(), number_type)
    if quantizes_lm_head:
        heads = [op.weight for op in plan.logits if isinstance(op, Linear)]
        types |= {name: "i8" for name in heads[-1:] if name not in coded}
    return types
