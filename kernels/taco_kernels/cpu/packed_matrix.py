"""Weight matrices in the layout of the CPU kernels."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from taco_kernels.cpu.structs import MATRIX_TYPES, TENSOR_TYPES, Matrix, Packing
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import allocate
from taco_kernels.panels import PANEL, halves, matrix_bytes, num_panels, panel_bytes
from taco_kernels.segments import MAX_SEGMENTS, TILE_K

DTYPES = {
    torch.float32: MATRIX_TYPES["f32"],
    torch.bfloat16: MATRIX_TYPES["bf16"],
    torch.int8: MATRIX_TYPES["i8"],
}
SOURCE_DTYPES = {
    torch.float32: TENSOR_TYPES["F32"],
    torch.bfloat16: TENSOR_TYPES["BF16"],
    torch.float16: TENSOR_TYPES["F16"],
}


class WeightMatrix(ABC):
    """A weight matrix W [n, k] in the kernels' layout (csrc/matmul/matrix.h).

    Attributes:
        shape: (n, k).
        dtype: of the operands that it multiplies.
        gated: rows 0 to n / 2 - 1 are the gate's, the others up's.
        packed_columns: of W^T, with the padding to whole panels.
        struct: the matrix as kernels take it; points to this object's memory.
    """

    def __init__(self, n: int, k: int, dtype: torch.dtype, *, gated: bool, segments: int) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"a packed matrix is float32, bfloat16 or int8, not {dtype}")
        if n <= 0 or k <= 0 or (gated and n % 2):
            raise ValueError(f"no matrix has the shape [{n}, {k}]{' of two halves' * gated}")
        _check_segments(segments, k, dtype)
        self.shape = (n, k)
        self.dtype = dtype
        self.gated = gated
        self.struct = Matrix(type=DTYPES[dtype], n=n, k=k, segments=segments)
        self.packed_columns = num_panels(n, gated=gated) * PANEL
        self._bias: Tensor | None = None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory that the matrix takes."""

    @property
    def has_rows(self) -> bool:
        """Whether `rows` can read the rows of W: int8 matrices keep them rounded."""
        return not self.gated and self.dtype != torch.int8

    @property
    def column_arrays(self) -> dict[str, Tensor]:
        """What a matrix keeps beside its panels and its bias, which packing fills."""
        return {}

    def restore(self, arrays: Mapping[str, Tensor]) -> None:
        """Copy the `column_arrays` of a matrix whose panels are in this one's memory.

        Raises:
            ValueError: they are not those of such a matrix.
        """
        own = self.column_arrays
        if arrays.keys() != own.keys():
            raise ValueError(f"a matrix has {sorted(own)}, not {sorted(arrays)}")
        for name, array in own.items():
            found = arrays[name]
            if (found.dtype, found.shape) != (array.dtype, array.shape):
                raise ValueError(
                    f"{name} must be {array.dtype} {list(array.shape)}, not {found.dtype} "
                    f"{list(found.shape)}"
                )
            array.copy_(found)

    @abstractmethod
    def pack(self, kernels: CpuKernels, rows: Tensor, start: int = 0) -> None:
        """Packs rows of W from `start` on: float32, bfloat16 or float16 [count, k]."""

    def rows(self, kernels: CpuKernels, indices: Tensor) -> Tensor:
        """Reads rows of W as products use them: an embedding lookup in a packed matrix.

        Args:
            indices: int [count].

        Returns:
            float32 [count, k].
        """
        if not self.has_rows:
            raise ValueError(
                f"rows cannot be read from a {'gated ' * self.gated}{self.dtype} matrix"
            )
        numbers = indices.long().contiguous()
        out = torch.empty(numbers.numel(), self.shape[1])
        kernels.lib.taco_read_rows(
            kernels.pool,
            ctypes.byref(self.struct),
            numbers.numel(),
            numbers.data_ptr(),
            out.data_ptr(),
        )
        return out

    def set_bias(self, bias: Tensor, start: int = 0) -> None:
        """Sets the bias, float [count], of rows from `start` on; 0 where none is set."""
        if self._bias is None:
            self._bias = torch.zeros(self.packed_columns)
            self.struct.bias = self._bias.data_ptr()
        for half, first, part in self._halves(bias, start):
            self._bias[self._columns_of(half, first, part.shape[0])] = part.float()

    def packed_order(self) -> Tensor:
        """int [n], the packed column of each row of W."""
        n = self.shape[0]
        rows = torch.arange(n)
        parts = [
            self._columns_of(half, first, part.shape[0])
            for half, first, part in self._halves(rows, 0)
        ]
        return torch.cat(parts)

    def _check_rows(self, rows: Tensor, start: int) -> None:
        n, k = self.shape
        if rows.dtype not in SOURCE_DTYPES or rows.ndim != 2 or rows.stride(1) != 1:
            raise ValueError(
                f"rows must be float32, bfloat16 or float16 with contiguous rows, not "
                f"{rows.dtype} with strides {rows.stride()}"
            )
        if rows.shape[1] != k or start < 0 or start + rows.shape[0] > n:
            raise ValueError(f"{list(rows.shape)} from row {start} on does not fit into [{n}, {k}]")

    def _halves(self, rows: Tensor, start: int) -> list[tuple[int, int, Tensor]]:
        """(half, its first row, its rows) of the matrix, or of gate and up of a gated pair."""
        found = halves(self.shape[0], start, rows.shape[0], gated=self.gated)
        return [(half, first, rows[begin:end]) for half, first, begin, end in found]

    def _columns_of(self, half: int, first: int, count: int) -> Tensor:
        """The packed columns of some rows of a half."""
        rows = torch.arange(first, first + count)
        return rows + (rows // PANEL + half) * PANEL if self.gated else rows


class PackedMatrix(WeightMatrix):
    """A matrix whose panels hold numbers of its dtype, not codes."""

    def __init__(
        self,
        n: int,
        k: int,
        dtype: torch.dtype,
        *,
        gated: bool = False,
        segments: int = 1,
        memory: Tensor | None = None,
    ) -> None:
        """Allocates a matrix, which `pack` fills.

        Args:
            dtype: float32, bfloat16, or int8 with a scale per column.
            gated: rows 0 to n / 2 - 1 are the gate's, the others up's; one product computes
                act(gate) * up.
            segments: equal segments of k that are summed one by one, and whose sums are added as
                a binary tree (csrc/matmul/matrix.h): 1, 2, 4 or 8, of whole tiles of k each. 1 for
                int8, whose sums are exact.
            memory: uint8 [panels.matrix_bytes(...)], aligned to 64 bytes, to use instead of new
                memory: zeros, or rows that are packed already.
        """
        super().__init__(n, k, dtype, gated=gated, segments=segments)
        self._panel_bytes = panel_bytes(dtype.itemsize, k)
        if memory is None:
            memory = allocate(matrix_bytes(n, k, dtype.itemsize, gated=gated))
        self._data = memory
        quantized = dtype == torch.int8
        columns = self.packed_columns
        self._scales = torch.zeros(columns) if quantized else None
        self._column_sums = torch.zeros(columns, dtype=torch.int32) if quantized else None
        self.struct.data = self._data.data_ptr()
        self.struct.scales = _address(self._scales)
        self.struct.column_sums = _address(self._column_sums)

    @classmethod
    def from_tensor(
        cls,
        kernels: CpuKernels,
        weight: Tensor,
        dtype: torch.dtype | None = None,
        *,
        bias: Tensor | None = None,
        gated: bool = False,
        segments: int = 1,
    ) -> PackedMatrix:
        """Packs weight [n, k], and bias [n] in the order of its rows."""
        n, k = weight.shape
        matrix = cls(n, k, dtype or weight.dtype, gated=gated, segments=segments)
        matrix.pack(kernels, weight)
        if bias is not None:
            matrix.set_bias(bias)
        return matrix

    @property
    def nbytes(self) -> int:
        tensors = (self._data, self._scales, self._column_sums, self._bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @property
    def column_arrays(self) -> dict[str, Tensor]:
        arrays = {"scales": self._scales, "sums": self._column_sums}
        return {name: array for name, array in arrays.items() if array is not None}

    @property
    def scales(self) -> Tensor:
        """float32 [n], the quantization scale of each row of an int8 matrix."""
        if self._scales is None:
            raise ValueError(f"a {self.dtype} matrix has no scales")
        return self._in_order(self._scales)

    def pack(self, kernels: CpuKernels, rows: Tensor, start: int = 0) -> None:
        self._check_rows(rows, start)
        for half, first, part in self._halves(rows, start):
            column = half * PANEL
            packing = packing_of(
                part,
                DTYPES[self.dtype],
                first,
                2 if self.gated else 1,
                self._data.data_ptr() + half * self._panel_bytes,
                None if self._scales is None else self._scales[column:].data_ptr(),
                None if self._column_sums is None else self._column_sums[column:].data_ptr(),
            )
            kernels.lib.taco_pack(kernels.pool, ctypes.byref(packing), 1)

    def _in_order(self, packed: Tensor) -> Tensor:
        if not self.gated:
            return packed[: self.shape[0]]
        size = self.shape[0] // 2
        return torch.cat([packed[self._columns_of(half, 0, size)] for half in (0, 1)])


def packing_of(
    rows: Tensor,
    dtype: int,
    first: int,
    panel_step: int,
    data: int,
    scales: int | None = None,
    column_sums: int | None = None,
) -> Packing:
    """The arguments of `taco_pack` for rows [count, k]; the others are as in its struct."""
    count, k = rows.shape
    return Packing(
        SOURCE_DTYPES[rows.dtype],
        rows.data_ptr(),
        count,
        k,
        rows.stride(0),
        dtype,
        first,
        panel_step,
        data,
        scales,
        column_sums,
    )


def _check_segments(segments: int, k: int, dtype: torch.dtype) -> None:
    if segments == 1:
        return
    if dtype == torch.int8:
        raise ValueError("int8 sums are exact: they have no segments")
    powers = [2**i for i in range(1, MAX_SEGMENTS.bit_length())]
    if segments not in powers or k % (segments * TILE_K):
        raise ValueError(
            f"{k} columns cannot be {segments} segments: these are {powers}, of a multiple of "
            f"{TILE_K} columns each"
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
