"""Cuts a program into layers and stages, and finds which buffers live across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.backends.cpu.lowered_ops import WHOLE_STEP, LoweredOp, LoweredStage
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.slices import Slice, is_covered


def layer_ends(plan: ModelPlan) -> dict[int, int]:
    """The index of the op after each layer but the last, to the layer."""
    ends: dict[int, int] = {}
    index = len(plan.embedding)
    for layer, ops in enumerate(plan.layers[:-1]):
        index += len(ops)
        ends[index] = layer
    return ends


def with_live_buffers(ops: Sequence[LoweredOp]) -> list[LoweredOp]:
    """The ops, with the live buffers of `restrict_rows` filled in."""
    return [
        replace(op, live=_live_after(ops, index)) if op.kind == "restrict_rows" else op
        for index, op in enumerate(ops)
    ]


def cut_into_stages(ops: Sequence[LoweredOp]) -> list[LoweredStage]:
    """Runs of row-wise ops are one stage; each op over the whole step is one by itself."""
    stages: list[LoweredStage] = []
    for index, op in enumerate(ops):
        by_chunks = op.kind not in WHOLE_STEP
        if by_chunks and stages and stages[-1].by_chunks:
            stages[-1] = replace(stages[-1], count=stages[-1].count + 1)
        else:
            stages.append(LoweredStage(index, 1, by_chunks))
    return stages


def local_buffers(ops: Sequence[LoweredOp], stages: Sequence[LoweredStage]) -> set[str]:
    """Buffers that each stage writes before it reads them, and no whole-step op uses."""
    local: set[str] = set()
    crossing: set[str] = set()
    for stage in stages:
        written: list[Slice] = []
        for op in ops[stage.first : stage.first + stage.count]:
            crossing |= {part.buffer for part in op.reads if not is_covered(part, written)}
            crossing |= set(op.live)
            written += op.writes
        (local if stage.by_chunks else crossing).update(part.buffer for part in written)
    return local - crossing


def _live_after(ops: Sequence[LoweredOp], index: int) -> tuple[str, ...]:
    """Buffers of columns that are written up to `index` and read before they are written again."""
    written = {part.buffer for op in ops[:index] for part in op.writes}
    rewritten: list[Slice] = []
    live: dict[str, None] = {}
    for op in ops[index + 1 :]:
        for part in op.reads:
            if part.buffer in written and not is_covered(part, rewritten):
                live[part.buffer] = None
        rewritten += [part for part in op.writes if not is_covered(part, rewritten)]
    return tuple(live)
