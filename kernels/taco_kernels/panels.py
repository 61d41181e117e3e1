"""Where the numbers of a packed matrix are (csrc/matmul/matrix.h). Free of torch."""

from typing import NamedTuple

PANEL = 16  # rows of W in a panel
_GROUP_BYTES = 64  # of a row in k: a row of an AMX tile


class HalfRows(NamedTuple):
    """Some rows of a matrix, or of gate or up of a gated pair.

    Attributes:
        half: 0, or 1 for up.
        first: number of the first row in its half.
        begin, end: the rows among those that were asked for.
    """

    half: int
    first: int
    begin: int
    end: int


def halves(n: int, start: int, count: int, *, gated: bool) -> list[HalfRows]:
    """Rows `start` to `start + count` of W [n, k], divided between gate and up of a gated pair."""
    if not gated:
        return [HalfRows(0, start, 0, count)]
    size = n // 2
    num_gate = max(0, min(count, size - start))
    gate = HalfRows(0, start, 0, num_gate)
    up = HalfRows(1, max(0, start - size), num_gate, count)
    return [rows for rows in (gate, up) if rows.begin < rows.end]


def num_panels(n: int, *, gated: bool) -> int:
    """Panels of a matrix of n rows; each half of a gated pair has whole panels."""
    num_halves = 2 if gated else 1
    return num_halves * -(-n // num_halves // PANEL)


def padded_k(itemsize: int, k: int) -> int:
    """k of a matrix of numbers of `itemsize` bytes, padded to whole AMX tiles."""
    group = _GROUP_BYTES // itemsize
    return k if itemsize == 4 else -(-k // group) * group


def panel_bytes(itemsize: int, k: int) -> int:
    return PANEL * padded_k(itemsize, k) * itemsize


def matrix_bytes(n: int, k: int, itemsize: int, *, gated: bool) -> int:
    """Bytes of a packed matrix [n, k] without its scales and bias."""
    return num_panels(n, gated=gated) * panel_bytes(itemsize, k)
