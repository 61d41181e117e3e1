"""Which parameters of a quantized model can be kept as codes, and the layout of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from taco_worker.models.plan.exact_parameters import exact_parameters
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Parameter, Source, weight_format
from taco_worker.quant.weight_format import CodeLayout, OnlineQuantization, Quantization


@dataclass(frozen=True, slots=True)
class CodeSegment:
    """Rows [start, start + count) of a parameter (of each expert).

    Attributes:
        layout: of their codes; None: they are not quantized, or have no codes.
    """

    start: int
    count: int
    layout: CodeLayout | None


Segments = Mapping[str, tuple[CodeSegment, ...]]


def code_segments(
    plan: ModelPlan, quantization: Quantization | None, online: OnlineQuantization | None
) -> Segments:
    """The segments of the parameters of which some rows have codes, in the order of rows.

    A parameter whose experts, or whose alternative layouts in checkpoints, differ is not among
    them: it is dequantized at load.

    Raises:
        ValueError: the checkpoint's format cannot store one of the matrices.
    """
    segments: dict[str, tuple[CodeSegment, ...]] = {}
    exact = frozenset() if online is None else exact_parameters(plan)
    for name, parameter in plan.parameters.items():
        if name in exact:
            continue
        found = _segments(parameter, quantization, online)
        if found is not None and any(segment.layout is not None for segment in found):
            segments[name] = found
    return segments


def _segments(
    parameter: Parameter, quantization: Quantization | None, online: OnlineQuantization | None
) -> tuple[CodeSegment, ...] | None:
    """None: not a matrix, or several answers."""
    if len(parameter.shape) != (2 if parameter.num_experts is None else 3):
        return None
    experts = [None] if parameter.num_experts is None else range(parameter.num_experts)
    answers = {
        _merged(
            [
                CodeSegment(
                    source.start,
                    source.count,
                    _layout(parameter, source, expert, quantization, online),
                )
                for source in layout
            ]
        )
        for layout in parameter.layouts
        for expert in experts
    }
    return _cut(answers.pop(), parameter) if len(answers) == 1 else None


def _layout(
    parameter: Parameter,
    source: Source,
    expert: int | None,
    quantization: Quantization | None,
    online: OnlineQuantization | None,
) -> CodeLayout | None:
    columns = parameter.shape[-1]
    if online is not None:
        return online.layout_of(source.module, source.count, columns)
    row_shape = (columns,)
    format_ = weight_format(source, expert, row_shape, quantization)
    return None if format_ is None or not source.selects_rows else format_.layout


def _merged(segments: Sequence[CodeSegment]) -> tuple[CodeSegment, ...]:
    """Adjacent rows of one layout as one segment."""
    in_order = sorted(segments, key=lambda segment: segment.start)
    merged = []
    for layout, group in groupby(in_order, key=lambda segment: segment.layout):
        same = list(group)
        count = sum(segment.count for segment in same)
        merged.append(CodeSegment(same[0].start, count, layout))
    return tuple(merged)


def _cut(segments: Sequence[CodeSegment], parameter: Parameter) -> tuple[CodeSegment, ...]:
    """The segments cut where any stored matrix begins: they may have scales of unlike types."""
    starts = {source.start for layout in parameter.layouts for source in layout}
    cut = []
    for segment in segments:
        end = segment.start + segment.count
        own = sorted({segment.start, *(start for start in starts if segment.start < start < end)})
        for start, next_start in zip(own, [*own[1:], end], strict=True):
            cut.append(CodeSegment(start, next_start - start, segment.layout))
    return tuple(cut)
