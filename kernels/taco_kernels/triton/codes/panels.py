"""Products with the panels of a matrix of codes, as part of a kernel; see `PackedCodes`."""

from __future__ import annotations

import triton
import triton.language as tl

from taco_kernels.triton.codes.numbers import numbers_of_4_bits, numbers_of_8_bits


@triton.jit
def multiply_panels(
    x,
    starts,
    is_row,
    codes,
    columns,
    is_column,
    row_scales,
    scales,
    zeros,
    minima,
    table,
    order,
    first,
    last,
    k,
    n,
    row_size,
    KIND: tl.constexpr,
    IS_4_BIT: tl.constexpr,
    ZERO: tl.constexpr,
    TILE: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_MINIMA: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """float32 [BLOCK_N, BLOCK_ROWS]: the product of the panels from `first` to before `last`.

    Args:
        starts, is_row: [BLOCK_ROWS], where in `x` the rows of activations begin.
        columns, is_column: [BLOCK_N], rows of the matrix, which are columns of the result.
        n: rows of the whole matrix.
        row_size: bytes from one of them to the next, of 8-bit codes.
        GROUP_TILES: tiles of a group; unused without scales.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    NEEDS_X_SUMS: tl.constexpr = HAS_ZEROS or HAS_MINIMA
    sums = tl.zeros([BLOCK_N, BLOCK_ROWS], tl.float32)
    x_sums = tl.zeros([BLOCK_ROWS], tl.float32)
    for panel in range(first, last):
        if IS_4_BIT:
            places = (panel * n + columns).to(tl.int64) * TILE
        else:
            places = columns.to(tl.int64) * row_size + panel * TILE
        packed = tl.load(
            codes + places[:, None] + tl.arange(0, TILE)[None, :], mask=is_column[:, None], other=0
        )
        if IS_4_BIT:
            tile = 2 * panel
            numbers = numbers_of_4_bits(packed & 15, table, KIND, ZERO, dtype)
        else:
            tile = panel
            numbers = numbers_of_8_bits(packed, KIND, ZERO, dtype)
        x_tile = _load_tile(x, starts, is_row, order, tile, k, TILE, HAS_ORDER)
        if HAS_SCALES:
            part = tl.dot(numbers, x_tile, input_precision="ieee")
            if NEEDS_X_SUMS:
                x_sums = tl.sum(x_tile.to(tl.float32), axis=0)
            # Both tiles of a panel may belong to one group.
            if not IS_4_BIT or GROUP_TILES % 2 != 0:
                sums = _add_group(
                    sums,
                    part,
                    x_sums,
                    scales,
                    zeros,
                    minima,
                    tile // GROUP_TILES * n + columns,
                    is_column,
                    HAS_ZEROS,
                    HAS_MINIMA,
                )
        else:
            sums = tl.dot(numbers, x_tile, sums, input_precision="ieee")
        if IS_4_BIT:
            numbers = numbers_of_4_bits(packed >> 4, table, KIND, ZERO, dtype)
            x_tile = _load_tile(x, starts, is_row, order, tile + 1, k, TILE, HAS_ORDER)
            if HAS_SCALES:
                if GROUP_TILES % 2 == 0:
                    part = tl.dot(numbers, x_tile, part, input_precision="ieee")
                    if NEEDS_X_SUMS:
                        x_sums += tl.sum(x_tile.to(tl.float32), axis=0)
                else:
                    part = tl.dot(numbers, x_tile, input_precision="ieee")
                    if NEEDS_X_SUMS:
                        x_sums = tl.sum(x_tile.to(tl.float32), axis=0)
                sums = _add_group(
                    sums,
                    part,
                    x_sums,
                    scales,
                    zeros,
                    minima,
                    (tile + 1) // GROUP_TILES * n + columns,
                    is_column,
                    HAS_ZEROS,
                    HAS_MINIMA,
                )
            else:
                sums = tl.dot(numbers, x_tile, sums, input_precision="ieee")
    factors = tl.load(row_scales + columns, mask=is_column, other=0.0)
    return sums * factors[:, None]


@triton.jit
def _load_tile(
    x,
    starts,
    is_row,
    order,
    tile,
    k,
    TILE: tl.constexpr,
    HAS_ORDER: tl.constexpr,
):
    """The columns of a tile of each row, [TILE, rows]; zeros for padding."""
    columns = tile * TILE + tl.arange(0, TILE)
    if HAS_ORDER:
        columns = tl.load(order + columns)
        is_column = columns >= 0
    else:
        is_column = columns < k
    mask = is_column[:, None] & is_row[None, :]
    return tl.load(x + starts[None, :] + columns[:, None], mask=mask, other=0.0)


@triton.jit
def _add_group(
    sums,
    part,
    x_sums,
    scales,
    zeros,
    minima,
    places,
    is_column,
    HAS_ZEROS: tl.constexpr,
    HAS_MINIMA: tl.constexpr,
):
    """Add a group's `part`, which lacks its scales, zeros and minima (at `places`).

    Args:
        x_sums: sums of the group's activations.
    """
    scale = tl.load(scales + places, mask=is_column, other=0.0).to(tl.float32)
    sums += part * scale[:, None]
    if HAS_ZEROS:
        zero = tl.load(zeros + places, mask=is_column, other=0).to(tl.float32)
        sums -= (zero * scale)[:, None] * x_sums[None, :]
    if HAS_MINIMA:
        minimum = tl.load(minima + places, mask=is_column, other=0.0).to(tl.float32)
        sums -= minimum[:, None] * x_sums[None, :]
    return sums
