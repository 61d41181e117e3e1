"""Layouts of a parameter that have the same tensor names, and differ in the tensors' shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Parameter, Source, fills
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files, stored_tensors

Layout = tuple[Source, ...]


def with_stored_layouts(plan: ModelPlan, checkpoint: CheckpointFiles) -> ModelPlan:
    """The plan, with one layout of those that have the same tensor names.

    It is the first that the stored shapes fit, such as experts stacked as [in, out] or [out, in].
    Without readable files it is the first; loading says what is wrong with them.
    """
    several = [one for one in plan.parameters.values() if len(_by_names(one)) < len(one.layouts)]
    if not several:
        return plan
    shapes = _stored_shapes(plan, checkpoint)
    chosen = {one.name: replace(one, layouts=tuple(_chosen(one, shapes))) for one in several}
    return replace(plan, parameters={**plan.parameters, **chosen})


def _by_names(parameter: Parameter) -> dict[tuple[str, ...], list[Layout]]:
    layouts: dict[tuple[str, ...], list[Layout]] = {}
    for layout in parameter.layouts:
        layouts.setdefault(tuple(source.name for source in layout), []).append(layout)
    return layouts


def _chosen(parameter: Parameter, shapes: Mapping[str, tuple[int, ...]]) -> Iterable[Layout]:
    for layouts in _by_names(parameter).values():
        of_layouts = fills(replace(parameter, layouts=tuple(layouts)))
        fitting = (
            layout
            for layout, filled in zip(layouts, of_layouts, strict=True)
            if all(name in shapes and fill.fits(shapes[name]) for name, fill in filled)
        )
        yield next(fitting, layouts[0])


def _stored_shapes(plan: ModelPlan, checkpoint: CheckpointFiles) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the stored tensors by canonical name."""
    if checkpoint.load_format in ("dummy", "sharded_state"):
        return {}
    try:
        return {
            plan.names.canonical(name) or "": tensor.shape
            for file in find_weight_files(checkpoint)
            for name, tensor in stored_tensors(file).items()
        }
    except ValueError:
        return {}
