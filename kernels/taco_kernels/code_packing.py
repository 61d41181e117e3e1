"""Packs `GroupCodes` for GPU kernels; see `PackedCodes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from taco_kernels.group_codes import GroupCodes
from taco_kernels.packed_codes import E2M1, PackedCodes, PackedKind
from taco_kernels.packed_size import (
    MAX_TILE_4_BIT,
    MAX_TILE_8_BIT,
    MIN_TILE,
    is_4_bit,
    max_tile,
    tile_of,
)

# Differences of codes and zeros within this distance are exact in bfloat16 (8 bits).
_MAX_ZERO = 128


def can_join(first: GroupCodes, second: GroupCodes) -> bool:
    """Whether the rows of both can be rows of one matrix."""
    return (
        (first.kind, first.group, first.shape[1]) == (second.kind, second.group, second.shape[1])
        and (first.zeros is None) == (second.zeros is None)
        and (first.minima is None) == (second.minima is None)
        and _equal(first.table, second.table)
        and _equal(first.group_of_column, second.group_of_column)
    )


def join(parts: Sequence[GroupCodes]) -> GroupCodes:
    """The rows of all parts as one matrix; each two of them can be joined."""
    first = parts[0]
    if len(parts) == 1:
        return first
    zeros = [part.zeros for part in parts if part.zeros is not None]
    minima = [part.minima for part in parts if part.minima is not None]
    return replace(
        first,
        codes=torch.cat([part.code_bytes() for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        minima=torch.cat(minima) if minima else None,
    )


def pack(codes: GroupCodes, device: torch.device | None = None) -> PackedCodes:
    """Pack on `device`; by default on that of the codes."""
    if device is not None:
        codes = _moved(codes, device)
    n, k = codes.shape
    columns = _columns(codes)
    num_tiles = -(-columns.count // columns.tile)
    num_tiles += num_tiles % 2 if is_4_bit(codes.kind) else 0
    num_columns = num_tiles * columns.tile
    numbers, order = codes.code_bytes().view(torch.uint8), columns.order
    if order is not None:
        order = F.pad(order, (0, num_columns - columns.count), value=-1)
        numbers = numbers[:, order.clamp(min=0)]
        order = order.int()
    numbers = F.pad(numbers, (0, num_columns - numbers.shape[1]))
    if is_4_bit(codes.kind):
        tiles = numbers.view(n, num_tiles, columns.tile).transpose(0, 1)
        numbers = tiles[0::2] | tiles[1::2] << 4
    num_groups = -(-num_columns // columns.group)

    def grouped(array: Tensor | None) -> Tensor | None:
        """[n, groups of the codes] to [groups of packed columns, n]."""
        if array is None:
            return None
        by_group = array.T if columns.sources is None else array.T[columns.sources]
        return F.pad(by_group, (0, 0, 0, num_groups - by_group.shape[0])).contiguous()

    zero, zeros, minima = _zeros(codes)
    scales: Tensor | None = codes.scales
    if codes.scales.shape[1] == 1 and zeros is None and minima is None:
        row_scales, scales = codes.scales[:, 0].contiguous(), None
    else:
        row_scales, scales, minima = _scaled(codes.scales, minima)
    kind, table, shift = _kind(codes)
    return PackedCodes(
        kind,
        k,
        columns.tile,
        num_columns if scales is None else columns.group,
        numbers.contiguous(),
        row_scales,
        grouped(scales),
        zero + shift,
        grouped(zeros),
        grouped(minima),
        table,
        order,
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    """How the columns of a matrix become packed columns.

    Attributes:
        count: packed columns, without padding at the end.
        tile, group: as of `PackedCodes`.
        order: int64 [count], or None: as of `PackedCodes`.
        sources: the group of the codes for each packed group; None: they are the same.
    """

    count: int
    tile: int
    group: int
    order: Tensor | None = None
    sources: Tensor | None = None


def _moved(codes: GroupCodes, device: torch.device) -> GroupCodes:
    names = ("codes", "scales", "zeros", "minima", "table", "group_of_column")
    tensors = ((name, getattr(codes, name)) for name in names)
    moved: dict[str, Any] = {name: one.to(device) for name, one in tensors if one is not None}
    return replace(codes, **moved)


def _columns(codes: GroupCodes) -> _Columns:
    k = codes.shape[1]
    if codes.scales.shape[1] == 1:
        tile = MAX_TILE_4_BIT if k % MAX_TILE_8_BIT else max_tile(codes.kind)
        return _Columns(k, tile, -(-k // 128) * 128)
    groups, order = codes.group_of_column, None
    device = codes.codes.device
    by_column = torch.arange(k, device=device) // codes.group
    if groups is not None:
        groups, order = groups.sort(stable=True)
    is_regular = groups is None or torch.equal(groups.long(), by_column)
    if is_regular and codes.group % MIN_TILE == 0:
        tile = max_tile(codes.kind)
        while codes.group % tile:
            tile //= 2
        return _Columns(k, tile, codes.group, order)
    # Each group is padded to whole tiles, which become the groups.
    groups = by_column if groups is None else groups.long()
    tile = tile_of(codes.kind, codes.group)
    sizes = groups.bincount(minlength=codes.scales.shape[1])
    num_tiles = (sizes + tile - 1) // tile
    starts = (num_tiles.cumsum(0) - num_tiles) * tile - (sizes.cumsum(0) - sizes)
    count = int(num_tiles.sum()) * tile
    places = starts[groups] + torch.arange(k, device=device)
    padded = torch.full((count,), -1, device=device)
    padded[places] = torch.arange(k, device=device) if order is None else order
    sources = torch.arange(sizes.shape[0], device=device).repeat_interleave(num_tiles)
    return _Columns(count, tile, tile, padded, sources)


def _kind(codes: GroupCodes) -> tuple[PackedKind, Tensor | None, int]:
    """The kind, the table, and what the codes of a table without look-up are less.

    The numbers of 4-bit floats, and adjacent integers, need no look-up.
    """
    if codes.table is None:
        return codes.kind, None, 0
    table = codes.table.tolist()
    if table == list(E2M1):
        return "e2m1", None, 0
    first = table[0]
    if 0 <= -first <= _MAX_ZERO and table == [first + i for i in range(16)] and first == int(first):
        return "int4", None, -int(first)
    return codes.kind, codes.table, 0


def _zeros(codes: GroupCodes) -> tuple[int, Tensor | None, Tensor | None]:
    """The zero of all groups, else zeros [n, groups]; and minima [n, groups]."""
    zeros = codes.zeros
    if zeros is None:
        return 0, None, codes.minima
    low, high = int(zeros.min()), int(zeros.max())
    if low < -_MAX_ZERO or high > _MAX_ZERO:
        return 0, None, zeros.float() * codes.scales
    if low == high:
        return low, None, None
    return 0, zeros if high == _MAX_ZERO else zeros.to(torch.int8), None


def _scaled(scales: Tensor, minima: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """A power of two for each row, and scales and minima divided by it: in 16 bits if exact."""
    greatest = scales.abs().amax(1)
    if minima is not None:
        greatest = torch.maximum(greatest, minima.abs().amax(1))
    # The greatest becomes a number from 2^14 to 2^15, of float16's 2^16.
    exponents = torch.frexp(greatest).exponent.clamp(min=-100) - 15
    row_scales = torch.ldexp(torch.ones_like(greatest), exponents)
    arrays = [scales] if minima is None else [scales, minima]
    divided = [array / row_scales[:, None] for array in arrays]
    narrow = [array.half() for array in divided]
    is_exact = all(
        torch.equal(one.float(), other) for one, other in zip(narrow, divided, strict=True)
    )
    kept = narrow if is_exact else divided
    return row_scales, kept[0], None if minima is None else kept[1]


def _equal(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
