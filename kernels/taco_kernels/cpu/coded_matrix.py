"""Weight matrices of small codes, in the layout of the CPU kernels (csrc/matmul/codes/)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from taco_kernels.code_layout import CodeLayout, RowSegment, ScaleType, coded_bytes, halves_of
from taco_kernels.cpu.coded_part import CodedPart, check_operands, layout_of
from taco_kernels.cpu.column_order import ColumnOrder, order_of
from taco_kernels.cpu.packed_matrix import DTYPES, WeightMatrix, packing_of
from taco_kernels.cpu.structs import CodePart
from taco_kernels.group_codes import GroupCodes
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import allocate


class CodedMatrix(WeightMatrix):
    """A matrix whose rows are codes, in segments that each have a layout.

    With bfloat16 operands, the product is that of a bfloat16 matrix with the same values, in every
    bit. With int8 operands, sums of whole numbers are exact over each group of columns
    (`taco_kernels.reference.linear.coded_linear`).
    """

    def __init__(
        self,
        n: int,
        k: int,
        segments_of_rows: Sequence[RowSegment],
        *,
        operands: torch.dtype = torch.bfloat16,
        order: ColumnOrder | None = None,
        gated: bool = False,
        segments: int = 1,
        memory: Tensor | None = None,
    ) -> None:
        """Allocates a matrix, which `pack_codes` and `pack` fill.

        Args:
            segments_of_rows: they cover the n rows in order.
            operands: bfloat16 or int8, what activations are rounded to.
            order: of int8 operands, which sorts the columns of all rows by group.
            gated, segments: as of a PackedMatrix.
            memory: uint8 [coded_bytes(n, k, segments_of_rows, gated)], aligned to 64 bytes, to
                use instead of new memory.

        Raises:
            ValueError: a segment begins at no multiple of 16 rows (of a half of a gated pair), or
                they do not cover the rows, or the codes of one multiply these operands on no
                instruction set.
        """
        super().__init__(n, k, operands, gated=gated, segments=segments)
        for segment in segments_of_rows:
            check_operands(segment.layout, operands, k)
        size = coded_bytes(n, k, segments_of_rows, gated)
        self._data = allocate(size) if memory is None else memory
        self._order = order
        if order is not None:
            self.struct.order = order.struct
        self._parts: list[CodedPart] = []
        begin = 0
        for half, first, segment in halves_of(segments_of_rows, n, gated):
            part = CodedPart(half, first, segment, k, gated, operands, self._data[begin:], order)
            self._parts.append(part)
            begin += part.reserved_bytes
        self._structs = (CodePart * len(self._parts))(*(part.struct for part in self._parts))
        self.struct.data = self._data.data_ptr()
        self.struct.parts = ctypes.addressof(self._structs)
        self.struct.num_parts = len(self._parts)

    @classmethod
    def from_codes(
        cls,
        kernels: CpuKernels,
        codes: GroupCodes,
        *,
        scale_type: ScaleType = "F32",
        zero: int | None = None,
        bits: int = 8,
        operands: torch.dtype = torch.bfloat16,
        bias: Tensor | None = None,
        gated: bool = False,
        segments: int = 1,
    ) -> CodedMatrix:
        """Packs codes [n, k], and bias [n] in the order of their rows."""
        n, k = codes.shape
        layout = layout_of(codes, scale_type, zero, bits)
        rows = [RowSegment(n, layout)]
        order = order_of([codes]) if operands == torch.int8 else None
        matrix = cls(n, k, rows, operands=operands, order=order, gated=gated, segments=segments)
        matrix.pack_codes(kernels, codes)
        if bias is not None:
            matrix.set_bias(bias)
        return matrix

    @property
    def nbytes(self) -> int:
        bias = 0 if self._bias is None else self._bias.nbytes
        order = 0 if self._order is None else self._order.nbytes
        return sum(part.nbytes for part in self._parts) + bias + order

    @property
    def has_rows(self) -> bool:
        return not self.gated and self._order is None

    @property
    def column_order(self) -> ColumnOrder | None:
        """The order of the columns of operands; None: they are in order."""
        return self._order

    @property
    def stored_layouts(self) -> tuple[CodeLayout | None, ...]:
        """How each part of the rows is kept: its layout, or one that takes less memory."""
        return tuple(part.stored for part in self._parts)

    @property
    def column_arrays(self) -> dict[str, Tensor]:
        return {
            f"{name}{index}": array
            for index, part in enumerate(self._parts)
            for name, array in part.column_arrays.items()
        }

    def store_as(self, layouts: Sequence[CodeLayout | None]) -> None:
        """Take the `stored_layouts` of a matrix whose panels are going to be in this memory.

        Raises:
            ValueError: they do not fit the parts of this matrix.
        """
        if len(layouts) != len(self._parts):
            raise ValueError(f"a matrix has {len(self._parts)} parts, not {len(layouts)}")
        for index, (part, layout) in enumerate(zip(self._parts, layouts, strict=True)):
            part.store_as(layout)
            self._structs[index] = part.struct

    def restore(self, arrays: Mapping[str, Tensor]) -> None:
        super().restore(arrays)
        for part in self._parts:
            part.check_columns()

    def pack(self, kernels: CpuKernels, rows: Tensor, start: int = 0) -> None:
        """Packs rows of W that are no codes, from `start` on: float [count, k]."""
        self._check_rows(rows, start)
        for half, first, own in self._halves(rows, start):
            for part, begin, end in self._parts_of(half, first, own.shape[0]):
                if part.layout is not None:
                    raise ValueError(f"row {start} and those after it are {part.layout.kind} codes")
                packing = packing_of(
                    own[begin - first : end - first],
                    DTYPES[torch.bfloat16],
                    begin - part.first,
                    1,
                    part.struct.data,
                )
                kernels.lib.taco_pack(kernels.pool, ctypes.byref(packing), 1)

    def pack_codes(self, kernels: CpuKernels, codes: GroupCodes, start: int = 0) -> None:
        """Packs codes [count, k] of rows of W from `start` on.

        Raises:
            ValueError: the codes are unlike the layout of their rows, the layout cannot hold their
                values, or the instruction set does not multiply the operands with such codes.
        """
        count, k = codes.shape
        if k != self.shape[1] or start < 0 or start + count > self.shape[0]:
            raise ValueError(f"[{count}, {k}] from row {start} on does not fit into {self.shape}")
        for half, first, own in self._halves(torch.arange(count), start):
            for part, begin, end in self._parts_of(half, first, own.shape[0]):
                rows = _rows_of(codes, int(own[begin - first]), end - begin)
                part.pack(kernels, rows, begin - part.first)
        for index, part in enumerate(self._parts):
            self._structs[index] = part.struct

    def _parts_of(self, half: int, first: int, count: int) -> list[tuple[CodedPart, int, int]]:
        """(part, its first and last row + 1 among rows of a half)."""
        found = []
        for part in self._parts:
            begin, end = max(first, part.first), min(first + count, part.first + part.count)
            if part.half == half and begin < end:
                found.append((part, begin, end))
        return found


def _rows_of(codes: GroupCodes, start: int, count: int) -> GroupCodes:
    return codes.map_rows(lambda rows: rows[start : start + count])
