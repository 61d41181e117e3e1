"""Layouts of codes as JSON: what taco_weights.json says of matrices of codes.

Matrices have few layouts, so they are listed once, and named by their numbers; -1 is bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, get_args

from taco_kernels.code_layout import CodeLayout, ScaleType, StepType
from taco_worker.models.code_segments import CodeSegment, Segments

_KINDS = ("int4", "int8", "e4m3", "table16")
_NO_CODES = -1
_MAX_COUNT = 2**31

Layouts = Mapping[str, tuple[CodeLayout | None, ...]]


def codes_as_json(codes: Segments, stored: Layouts) -> dict[str, Any]:
    """`layouts`, `codes` and `stored` of taco_weights.json."""
    numbers: dict[CodeLayout | None, int] = {None: _NO_CODES}

    def numbers_of(layouts: Iterable[CodeLayout | None]) -> list[int]:
        return [numbers.setdefault(layout, len(numbers) - 1) for layout in layouts]

    rows = {
        name: [
            list(pair)
            for pair in zip(
                (one.count for one in segments),
                numbers_of(one.layout for one in segments),
                strict=True,
            )
        ]
        for name, segments in codes.items()
    }
    kept = {name: numbers_of(layouts) for name, layouts in stored.items()}
    layouts = [asdict(layout) for layout in numbers if layout is not None]
    return {"layouts": layouts, "codes": rows, "stored": kept}


def codes_from_json(content: Mapping[str, Any]) -> tuple[Segments, Layouts]:
    """The segments of each parameter, and what the parts of each matrix are kept as.

    Raises:
        ValueError: a field is missing or invalid.
    """
    layouts = [_layout(one) for one in _typed(content, "layouts", list)]

    def layout_of(number: object) -> CodeLayout | None:
        if type(number) is not int or not _NO_CODES <= number < len(layouts):
            raise ValueError(f"no layout has the number {number!r:.20}")
        return None if number == _NO_CODES else layouts[number]

    codes: dict[str, tuple[CodeSegment, ...]] = {}
    for name, rows in _typed(content, "codes", dict).items():
        segments: list[CodeSegment] = []
        start = 0
        for row in _listed(name, rows):
            if not isinstance(row, list) or len(row) != 2 or not _is_size(row[0], 1):
                raise ValueError(f"the codes of {name:.100} have the rows {row!r:.100}")
            segments.append(CodeSegment(start, row[0], layout_of(row[1])))
            start += row[0]
        codes[name] = tuple(segments)
    stored = {
        name: tuple(layout_of(number) for number in _listed(name, numbers))
        for name, numbers in _typed(content, "stored", dict).items()
    }
    return codes, stored


def _layout(content: object) -> CodeLayout:
    names = [item.name for item in fields(CodeLayout)]
    if not isinstance(content, dict) or sorted(content) != sorted(names):
        raise ValueError(f"a layout is {content!r:.200}")
    zero, step_type = content["zero"], content["step_type"]
    is_valid = (
        content["kind"] in _KINDS
        and content["scale_type"] in get_args(ScaleType)
        and (step_type is None or step_type in get_args(StepType))
        and _is_size(content["group"], 1)
        and _is_size(content["groups_per_unit"], 0)
        and _is_size(content["bits"], 1)
        and (zero is None or _is_size(zero, 0))
        and all(type(content[name]) is bool for name in names if name.startswith("has_"))
    )
    if not is_valid:
        raise ValueError(f"a layout is {content!r:.200}")
    return CodeLayout(**content)


def _typed(content: Mapping[str, Any], name: str, kind: type) -> Any:
    value = content.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r:.100}")
    return value


def _listed(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise ValueError(f"the codes of {name:.100} are {value!r:.100}")
    return value


def _is_size(value: object, least: int) -> bool:
    return type(value) is int and least <= value < _MAX_COUNT
