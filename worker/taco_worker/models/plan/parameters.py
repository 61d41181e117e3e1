"""The parameters of a plan, and the checkpoint tensors that fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taco_worker.models.plan.dequantization import Dequantization
from taco_worker.models.plan.views import PlusOne, Shape, View

EXPERT = "{expert}"


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint tensor, and the rows of a parameter that it fills.

    Attributes:
        name: the tensor's name. In a parameter with an expert axis, `{expert}` is the expert's
            number; without it the tensor holds all experts in its first axis.
        start, count: the rows of the parameter (of each expert) that it fills.
        views: applied to the stored tensor (of each expert) one after another.
        dequantization: of the viewed tensors, which `name` and its suffixes name.
    """

    name: str
    start: int
    count: int
    views: tuple[View, ...] = ()
    dequantization: Dequantization | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array of the model.

    Attributes:
        shape: [rows, columns], [size], or with a first axis of experts or heads.
        layouts: the tensors that fill it; a checkpoint has those of one layout.
        num_experts: size of the first axis if it is one of experts.
        initial: value of dummy weights; None: random.
    """

    name: str
    shape: Shape
    layouts: tuple[tuple[Source, ...], ...]
    num_experts: int | None = None
    initial: float | None = None

    @property
    def is_wide(self) -> bool:
        """Whether it stays float32 in models of narrower dtypes, which would round it."""
        sources = (source for layout in self.layouts for source in layout)
        return any(isinstance(view, PlusOne) for source in sources for view in source.views)


@dataclass(frozen=True, slots=True)
class Fill:
    """One use of a stored tensor.

    Attributes:
        parameter: the parameter that it fills.
        expert: index on the parameter's first axis; None: it has no axis of experts.
        start: first row that it fills.
        stored_shape: the shape that the stored tensor must have.
        views: applied to the tensor, or to its part of `expert` if `is_stacked`.
        is_stacked: the tensor holds all experts.
        dequantization: computes the rows from this and further tensors, or None.
        names: of all these tensors, in the order that it takes them.
    """

    parameter: str
    expert: int | None
    start: int
    stored_shape: Shape
    views: tuple[View, ...]
    is_stacked: bool
    dequantization: Dequantization | None = None
    names: tuple[str, ...] = ()

    def rows(self, tensor: Any) -> Any:
        """The rows of the parameter that `tensor` fills, still quantized."""
        rows = tensor[self.expert] if self.is_stacked else tensor
        for view in self.views:
            rows = view.apply(rows)
        return rows


def fills(parameter: Parameter) -> Iterator[list[tuple[str, Fill]]]:
    """For each layout, every tensor name with what it fills."""
    experts = [None] if parameter.num_experts is None else range(parameter.num_experts)
    for layout in parameter.layouts:
        yield [
            named
            for source in layout
            for expert in experts
            for named in _fills(parameter, source, expert)
        ]


def _fills(parameter: Parameter, source: Source, expert: int | None) -> Iterator[tuple[str, Fill]]:
    row_shape = parameter.shape[1:] if expert is None else parameter.shape[2:]
    name = source.name.replace(EXPERT, str(expert))
    names: tuple[str, ...] = (name,)
    shapes: tuple[Shape, ...] = ((source.count, *row_shape),)
    if source.dequantization is not None:
        names = tuple(name + suffix for suffix in source.dequantization.suffixes)
        shapes = source.dequantization.stored_shapes(shapes[0])
    is_stacked = expert is not None and EXPERT not in source.name
    for name, shape in zip(names, shapes, strict=True):
        for view in reversed(source.views):
            shape = view.stored_shape(shape)
        if is_stacked:
            shape = (parameter.shape[0], *shape)
        yield (
            name,
            Fill(
                parameter.name,
                expert,
                source.start,
                shape,
                source.views,
                is_stacked,
                source.dequantization,
                names,
            ),
        )
