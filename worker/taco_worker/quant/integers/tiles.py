"""The orders in which Marlin kernels store codes and scales (IST-DASLab/marlin, `Layer.pack`).

Codes of a matrix lie in tiles of 16 rows (of k) by 64 columns (of n), in the order in which the 32
threads of a warp feed tensor cores: thread 4c + q holds column c of eight, and rows q of four
pairs. Each function undoes one order by viewing a tile's codes with one axis for each of these
numbers. Names of axes: c, q as above; j: 16 columns of 64; b: 8 columns of 16; h: 8 rows of 16;
l: the row of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

TILE_ROWS, TILE_COLUMNS = 16, 64
_SIZES = {"c": 8, "q": 4, "j": 4, "b": 2, "h": 2, "l": 2, "r": 4, "o": 4, "p": 2}


def dense_codes(stored: Tensor) -> Tensor:
    """The codes [n, k] of Marlin's [k / 16, n * 16] 4-bit codes."""
    return _untile(stored, "cqjlbh", columns="jbc", rows="hql")


def group_scales(stored: Tensor) -> Tensor:
    """The scales [groups, n] of Marlin's, of which 64 columns lie transposed, as 8 by 8."""
    return stored.unflatten(1, (-1, 8, 8)).transpose(-1, -2).flatten(1)


def row_scales(stored: Tensor) -> Tensor:
    """The scales [1, n] of a matrix without groups: threads hold pairs of each 8 columns of 32."""
    return stored.unflatten(1, (-1, 4, 4, 2)).transpose(-2, -3).flatten(1)


def sparse_codes(stored: Tensor, bits: int) -> Tensor:
    """The codes [n, k / 2] of the columns that 2:4 Marlin stores, of its [k / 32, n * 16].

    o: 16 columns of 64; p: 8 columns of 16; b: 4 columns of 8; j: the column of these 4.
    """
    order = "opqjlbh" if bits == 4 else "opqjblh"
    return _untile(stored, order, columns="opbj", rows="hql")


def sparse_group_scales(stored: Tensor) -> Tensor:
    """The scales [groups, n] of 2:4 Marlin's: each 8 columns lie as 4 pairs 4 columns apart."""
    return stored.unflatten(1, (-1, 4, 2)).transpose(-1, -2).flatten(1)


def sparse_positions(stored: Tensor, n: int) -> Tensor:
    """The metadata int16 [n, k / 16] of 2:4 Marlin's [k / 32, n * 2].

    CUTLASS reorders the rows of 64 and swaps blocks of 2 by 2 (`reorder_meta`); Marlin reads other
    64 rows than CUTLASS. Of a row, the bits 1, 5 to 3 and 0 come first, then the lower bit of the
    column, and then bit 2 of the row.
    """
    parts = stored.reshape(-1, n // 64, 2, 8, 2, 2, 2)  # column, row, bit 1, 5-3, 0, column, 2
    return parts.permute(1, 3, 6, 2, 4, 0, 5).reshape(n, -1)


def w4a8_group_codes(stored: Tensor) -> Tensor:
    """The codes [n, k] of QQQ's [k / 16, n * 16] 4-bit codes with groups.

    A thread holds four rows (q of four, then h and l).
    """
    return _untile(stored, "cqjlbh", columns="jbc", rows="qhl")


def w4a8_row_codes(stored: Tensor) -> Tensor:
    """The same of codes without groups, of which the second 8 columns come first."""
    codes = _untile(stored, "cqjrb", columns="jbc", rows="qr")
    return codes.unflatten(0, (-1, 2, 8)).flip(1).flatten(0, 2)


def _untile(stored: Tensor, order: str, *, columns: str, rows: str) -> Tensor:
    """The codes [n, k] of tiles whose axes lie in `order`, outermost first.

    Args:
        columns, rows: the axes that make up the columns (of n) and rows (of k) of a tile.
    """
    sizes = [_SIZES[axis] for axis in order]
    tiles = stored.unflatten(1, (-1, *sizes))  # [k / 16, n / 64, axes...]
    axes: Sequence[int] = [2 + order.index(axis) for axis in columns + rows]
    split = len(columns)
    return (
        tiles.permute(1, *axes[:split], 0, *axes[split:])
        .reshape(tiles.shape[1] * TILE_COLUMNS, -1)
        .contiguous()
    )
