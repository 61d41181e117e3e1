"""The parameters of a plan, and the checkpoint tensors that fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taco_worker.models.plan.views import (
    EveryRow,
    GroupedRows,
    NegativeExp,
    PlusOne,
    Shape,
    Softplus,
    SwappedHalves,
    Transpose,
    View,
)
from taco_worker.quant.weight_format import Quantization, WeightFormat

EXPERT = "{expert}"


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint tensor, and the rows of a parameter that it fills.

    Attributes:
        name: the tensor's name. In a parameter with an expert axis, `{expert}` is the expert's
            number; without it the tensor holds all experts in its first axis.
        start, count: the rows of the parameter (of each expert) that it fills.
        views: applied to the stored tensor (of each expert) one after another.
        is_flat: the tensor has the rows of all experts one after another, without an axis of
            experts (DBRX). Not in quantized checkpoints.
    """

    name: str
    start: int
    count: int
    views: tuple[View, ...] = ()
    is_flat: bool = False

    @property
    def module(self) -> str:
        """What the names of a quantized matrix's tensors begin with."""
        return self.name.removesuffix(".weight")

    def matrix_shape(self, row_shape: Shape) -> Shape:
        """The shape [n, k] of the stored matrix, as quantized checkpoints have it.

        These store [out, in] where unquantized ones may store the transpose.
        """
        shape: Shape = (self.count, *row_shape)
        for view in reversed(self.matrix_views):
            shape = view.stored_shape(shape)
        return shape

    @property
    def matrix_views(self) -> tuple[View, ...]:
        """The views of a matrix that is stored as [out, in]."""
        return tuple(view for view in self.views if not isinstance(view, Transpose))

    @property
    def selects_rows(self) -> bool:
        """Whether the views only choose and reorder rows, which may also be those of codes."""
        kinds = GroupedRows | EveryRow | SwappedHalves
        return all(isinstance(view, kinds) for view in self.matrix_views)


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
        return any(
            isinstance(view, NegativeExp | PlusOne | Softplus)
            for source in sources
            for view in source.views
        )


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix that several tensors of a quantized checkpoint store.

    Attributes:
        module: what the names of its tensors begin with.
        expert: its index on the first axis of the tensors; None: they hold one matrix.
    """

    module: str
    expert: int | None
    format: WeightFormat

    @property
    def names(self) -> dict[str, str]:
        """The names of its tensors, by suffix."""
        return {suffix: self.module + suffix for suffix in self.format.tensors}


@dataclass(frozen=True, slots=True)
class Fill:
    """One use of a stored tensor.

    Attributes:
        parameter: the parameter that it fills.
        expert: index on the parameter's first axis; None: it has no axis of experts.
        start: first row that it fills.
        stored_shape: the shape that the stored tensor must have; an axis of None has any size.
        views: applied to the tensor or its part of `expert`, or to the dequantized matrix.
        is_stacked: the tensor holds all experts.
        matrix: the matrix that this and further tensors store, if it is quantized.
        dtypes: the types that the tensor may have, by their names in safetensors files; empty: any
            floating-point type.
        is_optional: the tensor may be missing.
        selects_rows: as of `Source`.
    """

    parameter: str
    expert: int | None
    start: int
    stored_shape: tuple[int | None, ...]
    views: tuple[View, ...]
    is_stacked: bool
    matrix: QuantizedMatrix | None = None
    dtypes: tuple[str, ...] = ()
    is_optional: bool = False
    selects_rows: bool = False

    def fits(self, shape: Shape) -> bool:
        """Whether a tensor of this shape can be used."""
        if len(shape) != len(self.stored_shape):
            return False
        return all(
            wanted in (None, size) for wanted, size in zip(self.stored_shape, shape, strict=True)
        )

    def rows(self, tensor: Any) -> Any:
        """The rows of the parameter that `tensor` fills; not of a quantized matrix."""
        return self.viewed(tensor[self.expert] if self.is_stacked else tensor)

    def viewed(self, matrix: Any) -> Any:
        """The rows of the parameter in the stored matrix."""
        for view in self.views:
            matrix = view.apply(matrix)
        return matrix


def fills(
    parameter: Parameter, quantization: Quantization | None = None
) -> Iterator[list[tuple[str, Fill]]]:
    """For each layout, every tensor name with what it fills."""
    experts = [None] if parameter.num_experts is None else range(parameter.num_experts)
    for layout in parameter.layouts:
        yield [
            named
            for source in layout
            for expert in experts
            for named in _fills(parameter, source, expert, quantization)
        ]


def weight_format(
    source: Source, expert: int | None, row_shape: Shape, quantization: Quantization | None
) -> WeightFormat | None:
    """The format of a source's matrix (of one expert) of rows of `row_shape`, if it has one."""
    if quantization is None or source.is_flat:
        return None
    shape = source.matrix_shape(row_shape)
    module = source.module.replace(EXPERT, str(expert))
    return quantization.format_of(module, *shape) if len(shape) == 2 else None


def _fills(
    parameter: Parameter, source: Source, expert: int | None, quantization: Quantization | None
) -> Iterator[tuple[str, Fill]]:
    row_shape = parameter.shape[1:] if expert is None else parameter.shape[2:]
    is_stacked = expert is not None and EXPERT not in source.name and not source.is_flat
    stack: Shape = (parameter.shape[0],) if is_stacked else ()
    format_ = weight_format(source, expert, row_shape, quantization)
    if format_ is None:
        shape: Shape = (source.count, *row_shape)
        for view in reversed(source.views):
            shape = view.stored_shape(shape)
        views = source.views
        if source.is_flat and expert is not None:
            own = _rows_of_expert(expert, parameter.shape[0], shape[0])
            shape, views = own.stored_shape(shape), (own, *views)
        name = source.name.replace(EXPERT, str(expert))
        stored = (*stack, *shape)
        yield name, Fill(parameter.name, expert, source.start, stored, views, is_stacked)
        return
    module = source.module.replace(EXPERT, str(expert))
    matrix = QuantizedMatrix(module, expert if is_stacked else None, format_)
    for suffix, tensor in format_.tensors.items():
        fill = Fill(
            parameter.name,
            expert,
            source.start,
            (*stack, *tensor.shape),
            source.matrix_views,
            is_stacked,
            matrix,
            tensor.dtypes,
            tensor.is_optional,
            source.selects_rows,
        )
        yield module + suffix, fill


def _rows_of_expert(expert: int, num_experts: int, count: int) -> View:
    """The `count` rows of one expert among those of all."""
    return GroupedRows(1, num_experts * count, expert * count, count)
