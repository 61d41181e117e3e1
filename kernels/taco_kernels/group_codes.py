"""Weight matrices as small codes, with a scale for each group of a row's columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from taco_kernels.bit_stream import unpack

CODES_PER_WORD = 8

CodeKind = Literal["int4", "int8", "e4m3", "table16"]


@dataclass(frozen=True, slots=True, eq=False)
class ScaleSteps:
    """Scales as numbers of a unit that several groups share. Exactly, in float32:

        scales[i, g] = steps[i, g] * units[i, g // groups_per_unit]
        minima[i, g] = minimum_steps[i, g] * minimum_units[i, g // groups_per_unit]

    Attributes:
        groups_per_unit: it divides the number of groups.
        steps: uint8, int8 or float8_e4m3fn [n, number of groups].
        units: float32 [n, number of groups / groups_per_unit].
        minimum_steps: uint8 [n, number of groups], of codes with minima; else None.
        minimum_units: float32, as `units`; or None.
    """

    groups_per_unit: int
    steps: Tensor
    units: Tensor
    minimum_steps: Tensor | None = None
    minimum_units: Tensor | None = None

    def scales(self) -> Tensor:
        return self.steps.float() * self.units.repeat_interleave(self.groups_per_unit, 1)

    def minima(self) -> Tensor | None:
        if self.minimum_steps is None or self.minimum_units is None:
            return None
        units = self.minimum_units.repeat_interleave(self.groups_per_unit, 1)
        return self.minimum_steps.float() * units

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> ScaleSteps:
        steps, units = self.minimum_steps, self.minimum_units
        return replace(
            self,
            steps=change(self.steps),
            units=change(self.units),
            minimum_steps=None if steps is None else change(steps),
            minimum_units=None if units is None else change(units),
        )


@dataclass(frozen=True, slots=True, eq=False)
class GroupCodes:
    """A matrix [n, k]. With the group g of column j, and all arithmetic in float32:

        value[i, j] = (number(codes[i, j]) - zeros[i, g]) * scales[i, g] - minima[i, g]

    without the terms that are None. At most one of zeros and minima is given.

    Attributes:
        kind: what `number` is: of "int4", codes from 0 to 15; of "int8", from -128 to 127; of
            "e4m3", the 8-bit float (OCP FP8, no infinities) with these bits; of "table16", an
            entry of `table`.
        codes: uint8 [n, k], one code a byte; int8 for "int8". Codes of 4 bits may be int32
            [n, k / 8], eight a word, the first in the lowest bits: views of tensors in files.
        group: columns of a group; the last one of a row may have fewer.
        scales: float32 [n, ceil(k / group)].
        zeros: int16 [n, ceil(k / group)], or None.
        minima: float32 [n, ceil(k / group)], or None.
        table: float32 [16], of "table16".
        group_of_column: int32 [k], the group of each column; None: column // group.
        steps: the scales and minima in a form that takes less memory, or None.
    """

    kind: CodeKind
    codes: Tensor
    group: int
    scales: Tensor
    zeros: Tensor | None = None
    minima: Tensor | None = None
    table: Tensor | None = None
    group_of_column: Tensor | None = None
    steps: ScaleSteps | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for arrays of other shapes or dtypes."""
        n, k = self.shape
        grouped = (n, -(-k // self.group))
        wanted = torch.int8 if self.kind == "int8" else torch.uint8
        if self.is_in_words:
            wanted = torch.int32 if self.kind in ("int4", "table16") else wanted
        arrays = (
            ("codes", self.codes, wanted, tuple(self.codes.shape)),
            ("scales", self.scales, torch.float32, grouped),
            ("zeros", self.zeros, torch.int16, grouped),
            ("minima", self.minima, torch.float32, grouped),
            ("table", self.table, torch.float32, (16,)),
            ("group_of_column", self.group_of_column, torch.int32, (k,)),
        )
        for name, array, dtype, shape in arrays:
            if array is not None and (array.dtype, tuple(array.shape)) != (dtype, shape):
                raise ValueError(
                    f"{name} must be {dtype} {list(shape)}, not {array.dtype} {list(array.shape)}"
                )
        if (self.table is None) == (self.kind == "table16"):
            raise ValueError("a table belongs to codes of kind table16, and to no other")
        if self.zeros is not None and self.minima is not None:
            raise ValueError("a matrix has zeros or minima, not both")

    @property
    def shape(self) -> tuple[int, int]:
        n, columns = self.codes.shape
        return n, columns * (CODES_PER_WORD if self.is_in_words else 1)

    @property
    def is_in_words(self) -> bool:
        """Whether `codes` has eight codes in each item."""
        return self.codes.dtype == torch.int32

    def code_bytes(self) -> Tensor:
        """uint8 or int8 [n, k], one code a byte."""
        return unpack(self.codes, 4) if self.is_in_words else self.codes

    def values(self) -> Tensor:
        """float32 [n, k]."""
        numbers = self._numbers()
        groups = self._groups()
        if self.zeros is not None:
            numbers = numbers - self.zeros[:, groups].float()
        values = numbers * self.scales[:, groups]
        return values if self.minima is None else values - self.minima[:, groups]

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> GroupCodes:
        """The codes of the rows that `change` selects: it gets tensors whose first axis is rows."""
        return replace(
            self,
            codes=change(self.codes),
            scales=change(self.scales),
            zeros=None if self.zeros is None else change(self.zeros),
            minima=None if self.minima is None else change(self.minima),
            steps=None if self.steps is None else self.steps.map_rows(change),
        )

    def _numbers(self) -> Tensor:
        if self.table is not None:
            return self.table[self.code_bytes().int()]
        if self.kind == "e4m3":
            return self.codes.view(torch.float8_e4m3fn).float()
        return self.code_bytes().float()

    def _groups(self) -> Tensor:
        if self.group_of_column is not None:
            return self.group_of_column
        return torch.arange(self.shape[1]) // self.group
