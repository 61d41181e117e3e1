"""How a matrix's codes are kept in memory. Free of torch: known before any tensor is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from taco_kernels.panels import PANEL

if TYPE_CHECKING:
    from taco_kernels.group_codes import CodeKind

ScaleType = Literal["F32", "BF16", "F16", "F8_E8M0"]
StepType = Literal["U8", "I8", "F8_E4M3"]

_SCALE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E8M0": 1}
_ZERO_BYTES = 2
_BLOCK_BYTES = 64
_JOINED_BLOCKS = {5: (32, 320), 6: (16, 192)}  # columns and bytes, by the bits of a code
_ALIGNMENT = 64
_TILE_COLUMNS = 32  # bfloat16 panels have whole tiles
_INT8_TILE_COLUMNS = 64
_INT8_COLUMNS = 16  # on vectors, a multiple of as many columns are summed


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """What is known of a matrix's `GroupCodes` before its tensors are read.

    Attributes:
        kind, group: as of `GroupCodes`; `group` is at most the number of columns.
        bits: of int8 codes: 8, or 5 or 6 if they are from -2^(bits - 1) on, or from 0 on with
            minima, and are multiplied with int8 operands on vectors.
        has_zeros, has_minima, has_column_groups: which optional arrays it has.
        zero: all zeros of int4 codes are this number, so that they take no memory.
        scale_type: a type that holds every scale and minimum exactly, by its name in safetensors
            headers. F8_E8M0 holds the powers of two. With steps, the type of their units.
        step_type, groups_per_unit: of `GroupCodes.steps`, by the name in safetensors headers;
            None and 0 without them.
    """

    kind: CodeKind
    group: int
    has_zeros: bool = False
    has_minima: bool = False
    has_column_groups: bool = False
    zero: int | None = None
    scale_type: ScaleType = "F32"
    step_type: StepType | None = None
    groups_per_unit: int = 0
    bits: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError for fields that contradict each other."""
        if (self.step_type is None) != (self.groups_per_unit == 0):
            raise ValueError("steps have a type and a number of groups that share a unit")
        if self.step_type is not None and (
            self.keeps_zeros or self.has_column_groups or self.group % 8
        ):
            raise ValueError("scales have steps in groups of 8, 16, ... columns, of one zero")
        if self.zero is not None and (self.kind != "int4" or not self.has_zeros):
            raise ValueError("one number is the zero of all codes only of int4 with zeros")
        if self.bits != 8 and not (
            self.bits in _JOINED_BLOCKS
            and self.kind == "int8"
            and not (self.has_zeros or self.has_column_groups)
            and self.group % self.block_columns == 0
        ):
            raise ValueError(
                "codes of 5 and 6 bits are int8 without zeros, in groups of a multiple of 32 and "
                "16 columns"
            )

    @property
    def keeps_zeros(self) -> bool:
        return self.has_zeros and self.zero is None

    @property
    def block_columns(self) -> int:
        """Columns of a block of codes of sixteen rows."""
        if self.bits != 8:
            return _JOINED_BLOCKS[self.bits][0]
        return 8 if self.kind in ("int4", "table16") else 4

    @property
    def block_bytes(self) -> int:
        return _BLOCK_BYTES if self.bits == 8 else _JOINED_BLOCKS[self.bits][1]

    @property
    def smallest_code(self) -> int:
        """What codes of 5 or 6 bits are counted from."""
        return 0 if self.has_minima else -(1 << self.bits - 1)

    def widened(self) -> CodeLayout:
        """The layout with a byte for each code of 5 or 6 bits."""
        return replace(self, bits=8)

    def keeps_column_groups(self, k: int) -> bool:
        """Whether the groups of k columns are kept as an array, in any order and of any size."""
        return self.has_column_groups or (self.group < k and self.group % 8 != 0)

    def chunk(self, k: int) -> tuple[int, int]:
        """Columns and groups that follow one header of scales in a panel."""
        if self.keeps_column_groups(k):
            return k, -(-k // self.group)
        if self.step_type is not None:
            return self.group * self.groups_per_unit, self.groups_per_unit
        return min(self.group, k), 1

    def panel_bytes(self, k: int) -> int:
        """Bytes of sixteen rows: `CodePart::panel_bytes` in csrc/matmul/codes/code_args.h."""
        scale = _SCALE_BYTES[self.scale_type]
        offset = _ZERO_BYTES if self.keeps_zeros else scale if self.has_minima else 0
        columns, groups = self.chunk(k)
        header = groups * (scale + offset)
        if self.step_type is not None:
            header = scale + offset + groups * (2 if self.has_minima else 1)
        return -(-k // columns) * header * PANEL + -(-k // self.block_columns) * self.block_bytes


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Adjacent rows of a matrix whose codes are alike.

    Attributes:
        count: rows.
        layout: None: their numbers are bfloat16.
    """

    count: int
    layout: CodeLayout | None

    def widened(self) -> RowSegment:
        return self if self.layout is None else replace(self, layout=self.layout.widened())

    def panel_bytes(self, k: int) -> int:
        if self.layout is not None:
            return self.layout.panel_bytes(k)
        return -(-k // _TILE_COLUMNS) * _TILE_COLUMNS * PANEL * 2

    def nbytes(self, k: int) -> int:
        size = -(-self.count // PANEL) * self.panel_bytes(k)
        return -(-size // _ALIGNMENT) * _ALIGNMENT


def coded_bytes(n: int, k: int, segments_of_rows: Sequence[RowSegment], gated: bool) -> int:
    """Bytes of a coded matrix without its bias and groups of columns.

    Raises:
        ValueError: a segment begins at no multiple of 16 rows (of a half of a gated pair), or
            they do not cover the rows.
    """
    return sum(segment.nbytes(k) for _, _, segment in halves_of(segments_of_rows, n, gated))


def halves_of(
    segments_of_rows: Sequence[RowSegment], n: int, gated: bool
) -> list[tuple[int, int, RowSegment]]:
    """(half, its first row, segment); a segment of both halves of a gated pair is cut in two.

    Raises:
        ValueError: as `coded_bytes`.
    """
    size = n // 2 if gated else n
    parts: list[tuple[int, int, RowSegment]] = []
    row = 0
    for segment in segments_of_rows:
        left = segment.count
        while left > 0 and row < n:
            half, first = divmod(row, size)
            count = min(left, size - first)
            if first % PANEL:
                raise ValueError(
                    f"a segment begins at row {row}, which is no multiple of {PANEL} of its matrix"
                )
            parts.append((half, first, RowSegment(count, segment.layout)))
            left, row = left - count, row + count
    if row != n or sum(segment.count for segment in segments_of_rows) != n:
        raise ValueError(f"segments of {[s.count for s in segments_of_rows]} rows are not {n}")
    return parts


def takes_int8(layout: CodeLayout, k: int, *, on_tiles: bool = False) -> bool:
    """Whether a matrix of k columns with these codes can multiply activations in int8.

    Products of whole numbers are summed exactly over a group. On vectors groups are a multiple of
    16 columns (or rows). On tiles they are whole tiles (or rows), without steps or minima, and
    codes less their zeros fit int8. Columns in any order of groups are sorted by group: then each
    group must have as many columns as if they were in order.

    Args:
        on_tiles: the instruction set multiplies tiles (AMX).
    """
    columns = _INT8_TILE_COLUMNS if on_tiles else _INT8_COLUMNS
    if layout.group < k and layout.group % columns:
        return False
    if on_tiles and (layout.has_minima or layout.step_type is not None):
        return False
    return layout.kind == "int4" or (layout.kind == "int8" and not layout.has_zeros)
