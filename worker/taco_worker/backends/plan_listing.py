"""Lists a model plan as text, before and after lowering, for `taco_llm plan`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain, groupby, islice
from math import prod

from taco_worker.backends.cpu.kept_codes import gated_matrices, kept_bytes, kept_codes
from taco_worker.backends.cpu.lowered_ops import LoweredOp, LoweredProgram, MatrixType
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.backends.torch.coded_parameters import coded_parameters, parameter_bytes
from taco_worker.models.code_segments import code_segments
from taco_worker.models.config import ModelConfig
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.parameters import Parameter
from taco_worker.models.plan.slices import Slice
from taco_worker.models.step_states import state_row_bytes

_ITEM_BYTES: dict[MatrixType, int] = {"f32": 4, "bf16": 2, "i8": 1}
_OP_WIDTH, _COLUMNS_WIDTH = 11, 55  # wider ones shift the rest of their row


def list_plans(plans: Iterable[ModelPlan], matrix_type: MatrixType) -> Iterator[str]:
    """As `list_plan`, one plan after another; neighbours with equal lines are shown once.

    Raises:
        ValueError: the CPU kernels lack an op of a plan.
    """
    listings = ([*list_plan(plan, matrix_type)] for plan in plans)
    for index, (lines, equal) in enumerate(groupby(listings)):
        if index:
            yield ""
        count = len([*equal])
        yield lines[0] if count == 1 else f"{count} times {lines[0]}"
        yield from lines[1:]


def list_model(model: ModelConfig, matrix_type: MatrixType) -> Iterator[str]:
    """The lines of a model's plan; after the size of its weights, that of its codes, if it has any.

    Args:
        matrix_type: of matrices without codes. On a CPU only bf16 keeps codes.

    Raises:
        ValueError: the CPU kernels lack an op of the plan, or the checkpoint's format cannot store
            one of the matrices.
    """
    lines = list_plan(model.plan, matrix_type)
    if model.has_codes and matrix_type == "bf16":
        lines = chain(islice(lines, 2), _codes(model), lines)
    yield from lines


def _codes(model: ModelConfig) -> Iterator[str]:
    """The most memory of weights whose codes are kept, on a CPU and on a GPU.

    Codes of 5 and 6 bits count as bytes, which some CPUs take for them.
    """
    plan = model.plan
    number_bytes = _ITEM_BYTES["bf16"]
    found = code_segments(plan, model.quantization, model.online_quantization)
    gated = gated_matrices(plan, lower_plan(plan, _types(plan, "bf16")))
    kept = kept_codes(plan, found, gated)
    on_cpu = sum(
        kept_bytes(plan, name, [rows.widened() for rows in kept[name]], is_gated=name in gated)
        if name in kept
        else _parameter_bytes(parameter, "bf16")
        for name, parameter in plan.parameters.items()
    )
    coded = coded_parameters(model, None)
    on_gpu = sum(
        parameter_bytes(plan, name, coded.get(name, ()), number_bytes) for name in plan.parameters
    )
    method = "at load" if model.quantization is None else model.quantization.method
    yield f"codes ({method}): at most {on_cpu:,} bytes on a CPU, {on_gpu:,} on a GPU"


def list_plan(plan: ModelPlan, matrix_type: MatrixType) -> Iterator[str]:
    """The lines of a plan, then those of its program for the CPU kernels.

    Args:
        matrix_type: of the matrices; other parameters are counted as float32.

    Raises:
        ValueError: the CPU kernels lack an op of the plan.
    """
    yield from _totals(plan, matrix_type)
    yield from _part("embedding", plan.embedding, plan)
    for first, last, ops in _equal_layers(plan):
        name = f"layer {first}" if first == last else f"layers {first} to {last}, each"
        yield from _part(name, ops, plan)
    yield from _part("final", plan.final, plan)
    yield from _part("logits", plan.logits, plan)
    yield from _list_program(lower_plan(plan, _types(plan, matrix_type)), matrix_type)


def _types(plan: ModelPlan, matrix_type: MatrixType) -> dict[str, MatrixType]:
    matrices = [name for name, parameter in plan.parameters.items() if len(parameter.shape) > 1]
    return dict.fromkeys(matrices, matrix_type)


def _parameter_bytes(parameter: Parameter, matrix_type: MatrixType) -> int:
    is_matrix = len(parameter.shape) > 1
    return prod(parameter.shape) * _ITEM_BYTES[matrix_type if is_matrix else "f32"]


def _totals(plan: ModelPlan, matrix_type: MatrixType) -> Iterator[str]:
    weight_bytes = sum(_parameter_bytes(one, matrix_type) for one in plan.parameters.values())
    flops = sum(op.flops_per_token for op in chain(plan.ops, plan.logits))
    layers = f"{plan.num_layers} layer{'' if plan.num_layers == 1 else 's'}"
    yield f"{plan.architecture}: {layers}, {plan.num_elements:,} parameters"
    yield f"weights: {weight_bytes:,} bytes, matrices in {matrix_type}"
    # The cache has the type of the model: int8 matrices are of a model in bf16.
    kv_type: MatrixType = "f32" if matrix_type == "f32" else "bf16"
    kv_bytes = plan.kv_elements_per_token * _ITEM_BYTES[kv_type]
    numbers = f"{plan.kv_elements_per_token:,} numbers per token"
    yield f"KV cache: {numbers}, {kv_bytes:,} bytes in {kv_type}"
    if plan.states:
        yield f"states: {state_row_bytes(plan.states):,} bytes per sequence"
    yield f"products: {flops:,} FLOPs per token, logits included"
    yield f"longest sequence: {plan.max_position_embeddings:,} tokens"
    for name, table in plan.rope_tables.items():
        rotary = table.rotary
        scaling, growth = rotary.scaling or "none", table.growth or "none"
        sections = f", sections {list(rotary.sections)}" if rotary.sections else ""
        numbers = f"{table.rotary_dim} columns{sections}, theta {rotary.theta:,}"
        yield f"rope table {name}: {numbers}, scaling {scaling!s:.400}, growth {growth}"


def _equal_layers(plan: ModelPlan) -> Iterator[tuple[int, int, Sequence[Op]]]:
    """Runs of adjacent layers that differ in their parameters and KV entries alone."""
    start = 0
    for layer in range(1, plan.num_layers + 1):
        if layer < plan.num_layers and _shape(plan, layer) == _shape(plan, start):
            continue
        yield start, layer - 1, plan.layers[start]
        start = layer


def _shape(plan: ModelPlan, layer: int) -> list[str]:
    lines = [_op_line(op, plan) for op in plan.layers[layer]]
    return [re.sub(r"layers\.\d+\.|entry=\d+", "", line) for line in lines]


def _part(name: str, ops: Sequence[Op], plan: ModelPlan) -> Iterator[str]:
    if not ops:
        return
    yield ""
    yield name
    for op in ops:
        yield f"  {_op_line(op, plan)}"


def _op_line(op: Op, plan: ModelPlan) -> str:
    columns = f"{_listed(op.reads)} -> {_listed(op.writes)}"
    parameters = [f"{name} {list(plan.parameters[name].shape)}" for name in op.parameters]
    details = [*parameters, *_options(op)]
    return _row(type(op).__name__, columns, details)


def _options(op: Op) -> Iterator[str]:
    """The fields of an op that are neither columns nor parameters, where they are set."""
    for field in fields(op):  # type: ignore[arg-type]
        value = getattr(op, field.name)
        if value is None or value is False or isinstance(value, Slice):
            continue
        if value in op.parameters:
            continue
        shown = f"{len(value)} numbers" if isinstance(value, tuple) else value
        yield f"{field.name}={shown}"


def _list_program(program: LoweredProgram, matrix_type: MatrixType) -> Iterator[str]:
    yield ""
    yield f"after lowering for the CPU kernels, matrices in {matrix_type}"
    for name, buffer in program.buffers.items():
        place = "a chunk" if buffer.is_local else "all rows"
        yield f"  buffer {name}: {buffer.columns} columns of {buffer.type}, {place}"
    for index, stage in enumerate(program.stages):
        yield f"  stage {index}, {'chunk by chunk' if stage.by_chunks else 'the whole step'}"
        for op in program.ops[stage.first : stage.first + stage.count]:
            yield f"    {_lowered_line(op)}"


def _lowered_line(op: LoweredOp) -> str:
    columns = f"{_listed(op.reads)} -> {_listed(op.writes)}"
    details = [name for name in (op.table, op.matrix, op.weight, op.bias) if name is not None]
    if op.kind == "linear":
        details += [name for name in (op.epilogue, op.activation) if name not in ("store", "none")]
    return _row(op.kind, columns, details)


def _row(kind: str, columns: str, details: Iterable[str]) -> str:
    return f"{kind:{_OP_WIDTH}} {columns:{_COLUMNS_WIDTH}} {'; '.join(details)}".rstrip()


def _listed(parts: Sequence[Slice]) -> str:
    return ", ".join(map(str, parts)) or "-"
