"""The tiles and the size of codes that are packed for GPU kernels. Free of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taco_kernels.code_layout import CodeLayout

if TYPE_CHECKING:
    from taco_kernels.packed_codes import PackedKind

# Columns of a tile, at least: what a product on tensor cores takes of k at once. At most, rows of a
# panel of 8-bit codes fill the lines of caches.
MIN_TILE, MAX_TILE_4_BIT, MAX_TILE_8_BIT = 16, 64, 128
_NUMBER_BYTES = 4  # of scales, minima, zeros and indices of columns, at most
_LEAST_BYTES = 64


def is_4_bit(kind: PackedKind) -> bool:
    return kind in ("int4", "table16", "e2m1")


def max_tile(kind: PackedKind) -> int:
    """Most columns of a tile."""
    return MAX_TILE_4_BIT if is_4_bit(kind) else MAX_TILE_8_BIT


def tile_of(kind: PackedKind, group: int) -> int:
    """Columns of a tile of which each belongs to one group of `group` columns."""
    return min(max_tile(kind), max(MIN_TILE, 1 << group.bit_length() - 1))


def packed_bytes(layout: CodeLayout, n: int, k: int) -> int:
    """The most memory that a matrix [n, k] with such codes takes when packed."""
    tile = tile_of(layout.kind, layout.group)
    num_groups = -(-k // layout.group)
    num_columns = k + MAX_TILE_8_BIT
    is_padded = layout.group % MIN_TILE != 0
    if is_padded and num_groups > 1:  # each group is padded, and a tile is a group
        num_columns = num_groups * -(-layout.group // tile) * tile + MAX_TILE_8_BIT
        num_groups = num_columns // tile
    size = num_columns * n // (2 if is_4_bit(layout.kind) else 1) + _NUMBER_BYTES * n
    if num_groups > 1 or layout.has_zeros or layout.has_minima:
        numbers = 1 + layout.has_minima + layout.has_zeros
        size += (num_groups + MAX_TILE_8_BIT // MIN_TILE) * n * _NUMBER_BYTES * numbers
    has_order = layout.has_column_groups or is_padded
    return size + _LEAST_BYTES + (_NUMBER_BYTES * num_columns if has_order else 0)
