"""Which parameters a torch network keeps as codes, and how much memory they take. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import prod

from taco_kernels.packed_size import packed_bytes
from taco_worker.models.code_segments import CodeSegment, code_segments
from taco_worker.models.config import ModelConfig
from taco_worker.models.plan.exact_parameters import exact_parameters
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.quant.weight_format import CodeLayout

CodedParameters = Mapping[str, tuple[CodeSegment, ...]]
"""By the name of each parameter, the layouts of its rows."""


def coded_parameters(model: ModelConfig, stored_as: str | None) -> CodedParameters:
    """The parameters of linear layers and experts that have codes.

    Others, such as embeddings, also if the LM head shares them, are dequantized.

    Args:
        stored_as: "int8": all matrices but those of `exact_parameters` get 8-bit codes at load;
            None: those of the checkpoint.

    Raises:
        ValueError: the checkpoint's format cannot store one of the matrices.
    """
    plan = model.plan
    names = _names(plan)
    if stored_as is None:
        found = code_segments(plan, model.quantization, model.online_quantization)
    else:
        exact = exact_parameters(plan)
        found = {name: (_int8_rows(plan, name),) for name in names if name not in exact}
    return {
        name: found[name]
        for name, others in names.items()
        if name in found and all(other in found for other in others)
    }


def parameter_bytes(
    plan: ModelPlan, name: str, segments: tuple[CodeSegment, ...], number_bytes: int
) -> int:
    """Device memory of a parameter.

    Args:
        segments: of its rows; empty: it has no codes.
        number_bytes: of each number of the model's dtype.
    """
    shape = plan.parameters[name].shape
    if not segments:
        return prod(shape) * number_bytes
    num_experts = shape[0] if len(shape) == 3 else 1
    total = 0
    for segment in segments:
        n, k = num_experts * segment.count, shape[-1]
        if segment.layout is None:
            total += n * k * number_bytes
        else:
            total += packed_bytes(segment.layout, n, k)
    return total


def _names(plan: ModelPlan) -> dict[str, tuple[str, ...]]:
    """The parameters that may be codes, with those that must be codes too for that."""
    names: dict[str, tuple[str, ...]] = {}
    others: set[str] = {plan.embedding_table}
    for op in chain(plan.ops, plan.logits):
        match op:
            case Linear():
                names[op.weight] = ()
            case Experts():
                names |= {op.gate_up: (op.down,), op.down: (op.gate_up,)}
            case _:
                others.update(op.parameters)
    return {name: needed for name, needed in names.items() if name not in others}


def _int8_rows(plan: ModelPlan, name: str) -> CodeSegment:
    rows, columns = plan.parameters[name].shape[-2:]
    return CodeSegment(0, rows, CodeLayout("int8", columns))
