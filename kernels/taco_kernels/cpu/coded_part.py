"""Segments of rows of a weight matrix as codes (csrc/matmul/codes/code_args.h)."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace

import torch
from torch import Tensor

from taco_kernels.code_layout import CodeLayout, RowSegment, ScaleType, StepType, takes_int8
from taco_kernels.cpu.column_order import ColumnOrder, check_order
from taco_kernels.cpu.packed_matrix import DTYPES
from taco_kernels.cpu.structs import CodePacking, CodePart, CodeWords
from taco_kernels.group_codes import GroupCodes
from taco_kernels.library import CpuKernels
from taco_kernels.native.stored_codes import has_e4m3_nans
from taco_kernels.panels import PANEL

_KINDS = {"int4": 1, "table16": 1, "int8": 2, "e4m3": 3}
_KINDS_OF_BITS = {5: 4, 6: 5}
_SCALE_TYPES = {"F32": 0, "BF16": 1, "F16": 2, "F8_E8M0": 3}
_SCALE_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_STEP_TYPES = {None: 0, "U8": 1, "I8": 2, "F8_E4M3": 3}
_NAMES_OF_STEPS: dict[torch.dtype, StepType] = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
}
_SMALL_SCALE_TYPES: tuple[ScaleType, ...] = ("F8_E8M0", "F16", "BF16")
_OFFSET_ZERO, _OFFSET_MINIMUM = 1, 2
_MAX_ZERO = 256  # kept as bfloat16
_MAX_E4M3_SCALE = 2.0**119  # kernels decode numbers divided by 256, and multiply scales by it


class CodedPart:
    """A segment of a matrix's rows in memory.

    Attributes:
        half, first, count: rows of a half of a gated pair, or of the matrix.
        layout: as declared; None: the rows are bfloat16.
        stored: as kept, in the same memory or less.
        struct: as kernels take it.
        groups: of each column, if they have any order.
    """

    def __init__(
        self,
        half: int,
        first: int,
        segment: RowSegment,
        k: int,
        gated: bool,
        operands: torch.dtype,
        memory: Tensor,
        order: ColumnOrder | None,
    ) -> None:
        """`memory` has `segment.nbytes(k)` bytes or more; `order` as of a CodedMatrix."""
        self.half, self.first, self.count = half, first, segment.count
        self.layout = segment.layout
        self._order = order
        self.groups: Tensor | None = None
        self._table: Tensor | None = None
        self._k = k
        self._operands = operands
        self._memory = memory[: segment.nbytes(k)]
        self._is_empty = True
        step = 2 if gated else 1
        self.struct = CodePart(
            first_panel=first // PANEL * step + half,
            panel_step=step,
            num_panels=-(-segment.count // PANEL),
            k=k,
            data=memory.data_ptr(),
        )
        self.stored: CodeLayout | None = None
        self._store_as(segment.layout)

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        groups = 0 if self.groups is None else self.groups.nbytes
        return int(self.struct.num_panels * self.struct.panel_bytes) + groups

    @property
    def reserved_bytes(self) -> int:
        return self._memory.nbytes

    def pack(self, kernels: CpuKernels, codes: GroupCodes, first: int) -> None:
        """Packs codes of rows from `first` of the part on.

        If these are all its rows, their scales take the smallest type that holds them.

        Raises:
            ValueError: the codes are unlike the layout, or it cannot hold their values.
        """
        if self.layout is None:
            raise ValueError(f"{codes.kind} codes for rows whose numbers are bfloat16")
        layout = replace(self.layout, group=min(self.layout.group, self._k))
        found = layout_of(codes, layout.scale_type, layout.zero, layout.bits)
        if found != layout:
            raise ValueError(f"codes of another layout: {found}, not {layout}")
        if self._operands == torch.int8:
            if not takes_int8(layout, self._k, on_tiles=kernels.has_tiles):
                raise ValueError(f"{codes.kind} codes of such groups do not multiply int8 on tiles")
            if kernels.has_tiles and layout.bits != 8:
                raise ValueError(f"codes of {layout.bits} bits are not multiplied on tiles")
            check_order(codes, self._order)
            layout = replace(layout, has_column_groups=False)
        if codes.kind == "e4m3":
            _check_e4m3(codes)
        check_bits(codes, layout)
        if self._is_empty and codes.shape[0] == self.count:
            self._store_as(smallest_layout(codes, layout))
        assert self.stored is not None
        if codes.table is not None:
            self._share("table", codes.table)
        if codes.group_of_column is not None and self._operands != torch.int8:
            self._share("groups", codes.group_of_column)
        self._is_empty = False
        octets = None if codes.is_in_words else codes.codes.contiguous()
        if self._operands == torch.int8 and codes.zeros is not None:
            _check_int8_zeros(codes.zeros)
        scales, offsets, steps, offset_steps = _stored_scales(codes, self.stored)
        packing = CodePacking(
            self.struct,
            DTYPES[self._operands],
            first,
            codes.shape[0],
            _address(octets),
            0 if octets is None else octets.stride(0),
            None if self._order is None else self._order.struct.columns,
            _address(scales),
            _address(offsets),
            _address(steps),
            _address(offset_steps),
        )
        words = CodeWords(codes.codes.data_ptr(), *codes.codes.stride())
        kernels.lib.taco_pack_codes(
            kernels.pool, ctypes.byref(packing), ctypes.byref(words) if octets is None else None
        )

    @property
    def column_arrays(self) -> dict[str, Tensor]:
        """The table of codes and the groups of columns, if the part has its own."""
        has_table = self.layout is not None and self.layout.kind == "table16"
        arrays = {"table": self._table if has_table else None, "groups": self.groups}
        return {name: array for name, array in arrays.items() if array is not None}

    def store_as(self, layout: CodeLayout | None) -> None:
        """Take the form of a part with the same declared layout, whose panels are as `layout`.

        Raises:
            ValueError: no such part is kept so.
        """
        own = self.layout
        if own is None or layout is None:
            is_possible = own is layout
        else:
            kept = replace(
                own,
                group=layout.group,
                has_column_groups=own.has_column_groups and self._operands != torch.int8,
                scale_type=layout.scale_type,
                zero=own.zero if layout.zero is None else layout.zero,
            )
            is_possible = (
                layout == kept
                and layout.group in (own.group, min(own.group, self._k))
                and layout.panel_bytes(self._k) <= own.panel_bytes(self._k)
            )
        if not is_possible:
            raise ValueError(f"codes of the layout {own} are not kept as {layout}")
        self._is_empty = False
        self._store_as(layout)
        if layout is not None and layout.kind == "table16":
            self._table = torch.zeros(16)
            self.struct.table = self._table.data_ptr()

    def check_columns(self) -> None:
        """Raises ValueError if a group of columns is none of the part's, or a table no number."""
        if self.groups is not None and self.groups.numel():
            least, greatest = int(self.groups.min()), int(self.groups.max())
            if least < 0 or greatest >= self.struct.num_groups:
                raise ValueError(f"groups of columns are {least} to {greatest}")
        if self._table is not None and not bool(self._table.isfinite().all()):
            raise ValueError("a table has entries that are not finite")

    def _store_as(self, layout: CodeLayout | None) -> None:
        """Set the form in memory, which is not larger than the declared one."""
        if layout is not None and self._operands == torch.int8:
            layout = replace(layout, has_column_groups=False)  # columns are sorted
        self.stored = layout
        size = RowSegment(self.count, layout).panel_bytes(self._k)
        self.struct.panel_bytes = size
        last = (self.struct.num_panels - 1) * size
        self._memory[last : last + size].zero_()  # rows past the last
        if layout is None:
            return
        self.struct.kind = _KINDS_OF_BITS.get(layout.bits, _KINDS[layout.kind])
        self.struct.scale_type = _SCALE_TYPES[layout.scale_type]
        offset = _OFFSET_ZERO if layout.keeps_zeros else _OFFSET_MINIMUM if layout.has_minima else 0
        self.struct.offset = offset
        self.struct.step_type = _STEP_TYPES[layout.step_type]
        self.struct.zero = -layout.smallest_code if layout.bits != 8 else layout.zero or 0
        self.struct.chunk, self.struct.num_groups = layout.chunk(self._k)
        if layout.kind == "int4":
            self._table = torch.arange(16).float() - (layout.zero or 0)
            self.struct.table = self._table.data_ptr()
        if layout.keeps_column_groups(self._k):
            block = layout.block_columns
            self.groups = torch.zeros(-(-self._k // block) * block, dtype=torch.int32)
            self.groups[: self._k] = torch.arange(self._k) // layout.group
            self.struct.groups = self.groups.data_ptr()

    def _share(self, name: str, values: Tensor) -> None:
        """Keep the table, or the groups of columns, which all rows of a part share."""
        if name == "table":
            if self._table is None:
                self._table = values.float().contiguous().clone()
                self.struct.table = self._table.data_ptr()
            same = torch.equal(self._table, values)
        else:
            assert self.groups is not None
            if self._is_empty:
                self.groups[: values.numel()] = values
            same = torch.equal(self.groups[: values.numel()], values)
        if not same:
            raise ValueError(f"rows of one segment have unlike {name}")


def layout_of(
    codes: GroupCodes, scale_type: ScaleType = "F32", zero: int | None = None, bits: int = 8
) -> CodeLayout:
    """The layout of some codes; `scale_type`, `zero` and `bits` as they are declared."""
    return CodeLayout(
        codes.kind,
        min(codes.group, codes.shape[1]),
        codes.zeros is not None,
        codes.minima is not None,
        codes.group_of_column is not None,
        zero if _are_all(codes.zeros, zero) else None,
        scale_type,
        None if codes.steps is None else _NAMES_OF_STEPS[codes.steps.steps.dtype],
        0 if codes.steps is None else codes.steps.groups_per_unit,
        bits,
    )


def smallest_layout(codes: GroupCodes, layout: CodeLayout) -> CodeLayout:
    """The layout with the smallest type that holds the scales, and without zeros of one number."""
    if layout.step_type is not None:
        return layout
    if layout.scale_type == "F32":
        for scale_type in _SMALL_SCALE_TYPES:
            if _holds(codes.scales, scale_type) and (
                codes.minima is None or _holds(codes.minima, scale_type)
            ):
                layout = replace(layout, scale_type=scale_type)
                break
    if layout.keeps_zeros and codes.kind == "int4" and codes.zeros is not None:
        zero = int(codes.zeros[0, 0])
        layout = replace(layout, zero=zero if _are_all(codes.zeros, zero) else None)
    return layout


def _are_all(zeros: Tensor | None, zero: int | None) -> bool:
    return zeros is not None and zero is not None and bool((zeros == zero).all())


def _stored_scales(
    codes: GroupCodes, layout: CodeLayout
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Scales and offsets as a part keeps them, or their units; and the steps of both.

    Raises:
        ValueError: they are not exactly those of the codes.
    """
    steps = codes.steps
    if steps is not None:
        minima = steps.minima()
        is_same = (minima is None) == (codes.minima is None) and (
            minima is None or codes.minima is None or torch.equal(minima, codes.minima)
        )
        if not is_same or not torch.equal(steps.scales(), codes.scales):
            raise ValueError("scales are not their steps times their units")
        return (
            _stored(steps.units, layout.scale_type),
            _stored_if(steps.minimum_units, layout.scale_type),
            steps.steps.contiguous(),
            None if steps.minimum_steps is None else steps.minimum_steps.contiguous(),
        )
    scales = _stored(codes.scales, layout.scale_type)
    if layout.keeps_zeros and codes.zeros is not None:
        return scales, _stored_zeros(codes.zeros), None, None
    return scales, _stored_if(codes.minima, layout.scale_type), None, None


def _stored_if(minima: Tensor | None, scale_type: ScaleType) -> Tensor | None:
    return None if minima is None else _stored(minima, scale_type)


def _stored(scales: Tensor, scale_type: ScaleType) -> Tensor:
    """Scales or minima in the type that keeps them.

    Raises:
        ValueError: it does not hold them exactly.
    """
    stored, kept = _rounded(scales, scale_type)
    if not torch.equal(kept, scales):
        raise ValueError(f"scales are not exact in {scale_type}")
    return stored.contiguous()


def _holds(scales: Tensor, scale_type: ScaleType) -> bool:
    return torch.equal(_rounded(scales, scale_type)[1], scales)


def _rounded(scales: Tensor, scale_type: ScaleType) -> tuple[Tensor, Tensor]:
    """In the type, and what float32 numbers that gives."""
    if scale_type != "F8_E8M0":
        stored = scales.to(_SCALE_DTYPES[scale_type])
        return stored, stored.float()
    exponents = scales.contiguous().view(torch.int32) >> 23 & 0xFF
    bits = exponents << 23
    bits[exponents == 0] = 1 << 22  # 2^-127
    return exponents.to(torch.uint8), bits.view(torch.float32)


def check_operands(layout: CodeLayout | None, operands: torch.dtype, k: int) -> None:
    """Raises ValueError if the codes multiply such operands on no instruction set."""
    if operands == torch.bfloat16 and layout is not None and layout.bits != 8:
        raise ValueError(f"codes of {layout.bits} bits multiply no bfloat16 operands")
    if operands == torch.bfloat16 or (layout is not None and takes_int8(layout, k)):
        return
    kind = "bfloat16 numbers" if layout is None else f"{layout.kind} codes of such groups"
    raise ValueError(f"{kind} do not multiply {operands} operands")


def _check_e4m3(codes: GroupCodes) -> None:
    if has_e4m3_nans(codes.codes):
        raise ValueError("a code is no number")
    if codes.scales.numel() and float(codes.scales.abs().max()) > _MAX_E4M3_SCALE:
        raise ValueError(
            f"a scale of 8-bit floats is {float(codes.scales.abs().max()):g}: "
            f"at most {_MAX_E4M3_SCALE:g} is kept"
        )


def check_bits(codes: GroupCodes, layout: CodeLayout) -> None:
    """Raises ValueError if codes have more bits than their layout says."""
    if layout.bits == 8 or not codes.codes.numel():
        return
    first, last = layout.smallest_code, layout.smallest_code + (1 << layout.bits) - 1
    least, greatest = (int(one) for one in codes.codes.aminmax())
    if least < first or greatest > last:
        raise ValueError(
            f"codes from {least} to {greatest} do not fit {layout.bits} bits: {first} to {last}"
        )


def _check_int8_zeros(zeros: Tensor) -> None:
    """Codes less zeros must be int8."""
    least, greatest = (int(zeros.min()), int(zeros.max())) if zeros.numel() else (0, 0)
    if least < -112 or greatest > 128:
        raise ValueError(
            f"zeros from {least} to {greatest} do not multiply int8 operands: they must be from "
            "-112 to 128"
        )


def _stored_zeros(zeros: Tensor) -> Tensor:
    if math.prod(zeros.shape) and int(zeros.abs().max()) > _MAX_ZERO:
        raise ValueError(f"a zero is {int(zeros.abs().max())}: at most {_MAX_ZERO} is kept")
    return zeros.to(torch.bfloat16).contiguous()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
