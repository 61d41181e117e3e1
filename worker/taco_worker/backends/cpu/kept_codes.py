"""Which parameters the CPU kernels keep as codes, and how much memory they take. Free of torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import prod

from taco_kernels.code_layout import RowSegment, coded_bytes
from taco_worker.backends.cpu.lowered_ops import LoweredProgram
from taco_worker.models.code_segments import CodeSegment
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.linear import Linear

KeptCodes = Mapping[str, tuple[RowSegment, ...]]
"""By the name of each parameter, its rows of equal layouts."""


def gated_matrices(plan: ModelPlan, lowered: LoweredProgram) -> frozenset[str]:
    """The matrices of gated pairs: those of a lowered plan, and gate and up of its experts."""
    ops = chain(plan.ops, plan.logits)
    return lowered.gated | {op.gate_up for op in ops if isinstance(op, Experts)}


def kept_codes(
    plan: ModelPlan, codes: Mapping[str, Sequence[CodeSegment]], gated: Collection[str]
) -> KeptCodes:
    """The codes of matrices whose products take bfloat16 operands, and of embeddings.

    Those of routers are dequantized, and those with a segment that begins inside a panel.

    Args:
        codes: as the checkpoint has them.
        gated: the `gated_matrices`.
    """
    ops = list(chain(plan.ops, plan.logits))
    experts = [op for op in ops if isinstance(op, Experts)]
    logits = {op.logits for op in ops if isinstance(op, Route)}
    names = {op.weight for op in ops if isinstance(op, Linear) and op.out not in logits}
    names |= {name for op in experts for name in (op.gate_up, op.down)} | {plan.embedding_table}
    kept = {}
    for name in names & codes.keys():
        *_, n, k = plan.parameters[name].shape
        rows = tuple(RowSegment(segment.count, segment.layout) for segment in codes[name])
        with suppress(ValueError):  # a segment begins inside a panel
            coded_bytes(n, k, rows, name in gated)
            kept[name] = rows
    return kept


def kept_bytes(plan: ModelPlan, name: str, rows: Sequence[RowSegment], *, is_gated: bool) -> int:
    """Memory of the codes of a parameter, or of all its experts."""
    *several, n, k = plan.parameters[name].shape
    return prod(several) * coded_bytes(n, k, rows, is_gated)
