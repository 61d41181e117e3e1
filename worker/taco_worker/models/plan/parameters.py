"""The parameters of a plan, and the checkpoint tensors that fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    """

    name: str
    start: int
    count: int
    views: tuple[View, ...] = ()


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
    """

    parameter: str
    expert: int | None
    start: int
    stored_shape: Shape
    views: tuple[View, ...]
    is_stacked: bool

    def rows(self, tensor: Any) -> Any:
        """The rows of the parameter that `tensor` fills."""
        rows = tensor[self.expert] if self.is_stacked else tensor
        for view in self.views:
            rows = view.apply(rows)
        return rows


def fills(parameter: Parameter) -> Iterator[list[tuple[str, Fill]]]:
    """For each layout, every tensor name with what it fills."""
    experts = [None] if parameter.num_experts is None else range(parameter.num_experts)
    for layout in parameter.layouts:
        yield [
            (source.name.replace(EXPERT, str(expert)), _fill(parameter, source, expert))
            for source in layout
            for expert in experts
        ]


def _fill(parameter: Parameter, source: Source, expert: int | None) -> Fill:
    row_shape = parameter.shape[1:] if expert is None else parameter.shape[2:]
    shape: Shape = (source.count, *row_shape)
    for view in reversed(source.views):
        shape = view.stored_shape(shape)
    is_stacked = expert is not None and EXPERT not in source.name
    if is_stacked:
        shape = (parameter.shape[0], *shape)
    return Fill(parameter.name, expert, source.start, shape, source.views, is_stacked)
