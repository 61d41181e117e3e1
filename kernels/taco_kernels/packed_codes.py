"""`GroupCodes` in the order in which GPU kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from taco_kernels.group_codes import CodeKind
from taco_kernels.packed_size import is_4_bit

PackedKind = CodeKind | Literal["e2m1"]

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_POSITIVE, *(-number for number in _POSITIVE))
"""The 4-bit floats of the OCP Microscaling Formats 1.0 (section 5.3.3), by their bits."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedCodes:
    """A matrix [n, k]. With the group g of a packed column j:

        value[i, j] = ((number(i, j) - zero - zeros[g, i]) * scales[g, i] - minima[g, i])
                      * row_scales[i]

    without the terms that are None. The values are those of the `GroupCodes` in every bit.

    Packed columns are divided into tiles, and each tile belongs to one group. A panel is a tile of
    8-bit codes; of 4-bit codes it is two tiles, the first in the low halves of its bytes. Panels of
    4-bit codes are contiguous over all rows, so that the rows of a block are adjacent in memory.

    Attributes:
        kind, table: as of `GroupCodes`; or "e2m1": a number is the 4-bit float with these bits.
        k: columns of the matrix.
        tile: columns of a tile.
        group: packed columns of a group, a multiple of `tile`.
        codes: uint8; of 4-bit codes [panels, n, tile], of others [n, packed columns].
        row_scales: float32 [n].
        scales: float16 where it is exact, else float32 [groups, n], or None.
        zero: subtracted from all numbers.
        zeros: int8 or int16 [groups, n], or None.
        minima: as `scales`, or None.
        order: int32 [packed columns], the column of each; -1 for padding. None: columns are in
            order, and padding follows them.
    """

    kind: PackedKind
    k: int
    tile: int
    group: int
    codes: Tensor
    row_scales: Tensor
    scales: Tensor | None = None
    zero: int = 0
    zeros: Tensor | None = None
    minima: Tensor | None = None
    table: Tensor | None = None
    order: Tensor | None = None

    @property
    def n(self) -> int:
        return self.row_scales.shape[0]

    @property
    def num_panels(self) -> int:
        return self.codes.shape[0] if is_4_bit(self.kind) else self.codes.shape[1] // self.tile

    def map_tensors(self, change: Callable[[str, Tensor], Tensor]) -> PackedCodes:
        """With each tensor replaced by what `change` returns for its attribute and itself."""
        names = ("codes", "row_scales", "scales", "zeros", "minima", "table", "order")
        tensors = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {
            name: change(name, one) for name, one in tensors.items() if one is not None
        }
        return replace(self, **changed)

    def values(self, first: int = 0, last: int | None = None) -> Tensor:
        """float32 [rows, k] of the rows from `first` to before `last`."""
        rows = slice(first, last)
        if is_4_bit(self.kind):
            codes = self.codes[:, rows]
            tiles = torch.stack((codes & 15, codes >> 4), dim=1)
            columns = tiles.permute(2, 0, 1, 3).flatten(1)  # [rows, packed columns]
        else:
            columns = self.codes[rows]
        groups = torch.arange(columns.shape[1], device=columns.device) // self.group
        values = self._numbers(columns) - self.zero
        if self.zeros is not None:
            values -= self.zeros[:, rows].T[:, groups]
        if self.scales is not None:
            values *= self.scales[:, rows].T[:, groups].float()
        if self.minima is not None:
            values -= self.minima[:, rows].T[:, groups].float()
        values *= self.row_scales[rows, None]
        if self.order is None:
            return values[:, : self.k]
        is_column = self.order >= 0
        unordered = torch.empty(values.shape[0], self.k, device=values.device)
        unordered[:, self.order[is_column].long()] = values[:, is_column]
        return unordered

    def _numbers(self, codes: Tensor) -> Tensor:
        if self.table is not None:
            return self.table[codes.int()]
        if self.kind == "e2m1":
            return torch.tensor(E2M1, device=codes.device)[codes.int()]
        if self.kind == "e4m3":
            return codes.view(torch.float8_e4m3fn).float()
        return (codes.view(torch.int8) if self.kind == "int8" else codes).float()


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """The matrices of experts, [num_experts, n, k], as the rows of one matrix."""

    codes: PackedCodes
    num_experts: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.num_experts, self.codes.n // self.num_experts, self.codes.k

    def __getitem__(self, expert: int) -> Tensor:
        """float32 [n, k]: the values of one expert's matrix."""
        n = self.shape[1]
        return self.codes.values(expert * n, (expert + 1) * n)
