"""Reads the parts of packed blocks: nibbles, bits, and numbers of several bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taco_kernels.group_codes import ScaleSteps


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Codes of n rows of b blocks; `GroupCodes` explains the values.

    Attributes:
        codes: uint8 or int8 [n, b, columns of a block].
        scales: float32 [n, b, groups of a block].
        zero: of all groups, or None.
        minima: as `scales`, or None.
        table: 16 numbers, or None.
        steps: with the units of blocks, what scales are computed from; or None.
    """

    codes: Tensor
    scales: Tensor
    zero: int | None = None
    minima: Tensor | None = None
    table: tuple[int, ...] | None = None
    steps: BlockSteps | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockSteps:
    """Scales as numbers of a block's unit.

    Attributes:
        steps: uint8 or int8 [n, b, groups of a block].
        units: float32 [n, b, 1].
        minimum_steps, minimum_units: likewise, or None.
    """

    steps: Tensor
    units: Tensor
    minimum_steps: Tensor | None = None
    minimum_units: Tensor | None = None

    def scales(self) -> Tensor:
        return self.units * self.steps.float()

    def minima(self) -> Tensor | None:
        if self.minimum_steps is None or self.minimum_units is None:
            return None
        return self.minimum_units * self.minimum_steps.float()

    def of_rows(self) -> ScaleSteps:
        """The same for rows of groups."""
        steps, units = self.minimum_steps, self.minimum_units
        return ScaleSteps(
            self.steps.shape[-1],
            self.steps.flatten(1),
            self.units.flatten(1),
            None if steps is None else steps.flatten(1),
            None if units is None else units.flatten(1),
        )


def of_steps(
    codes: Tensor,
    steps: BlockSteps,
    *,
    zero: int | None = None,
    table: tuple[int, ...] | None = None,
) -> Decoded:
    return Decoded(codes, steps.scales(), zero, steps.minima(), table, steps)


def halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 at a byte of each block, as float32 [n, b, 1]."""
    return words(blocks, start, 1, torch.float16).float()


def words(blocks: Tensor, start: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers from a byte of each block on: [n, b, count]."""
    part = blocks[..., start : start + count * dtype.itemsize]
    # A view of other numbers must start at a multiple of their size: a copy does.
    return part.clone(memory_format=torch.contiguous_format).view(dtype)


def signed_bytes(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.int8)


def nibbles(part: Tensor) -> Tensor:
    """The low 4 bits of all bytes of the last axis, then the high ones."""
    return torch.cat((part & 15, part >> 4), -1)


def bits(count: int, width: int = 1, *, axis: int = 1) -> Tensor:
    """Places of `count` numbers of `width` bits in a byte: [count, 1], or [count] for axis 0."""
    places = torch.arange(0, count * width, width, dtype=torch.uint8)
    return places[:, None] if axis else places
