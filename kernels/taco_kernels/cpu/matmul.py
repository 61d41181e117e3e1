"""Matrix products on the CPU: packed weight matrices, encoded activations, product and argmax."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from taco_kernels.cpu.structs import Matrix, Packing, Product, Rows
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import allocate
from taco_kernels.reference.activation import ALPHA, check_activation
from taco_kernels.segments import MAX_SEGMENTS, TILE_K

PANEL = 16
ACTIVATIONS = {
    "none": 0,
    "relu": 1,
    "gelu": 2,
    "gelu_tanh": 3,
    "silu": 4,
    "relu2": 5,
    "quick_gelu": 6,
    "swiglu_clipped": 7,
}
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_PARTIAL_SUM_TOKENS = 64  # csrc/sampling/sampling_args.h
# RowScale in csrc/matmul/matrix.h: a scale, a number of outliers, and 16 outliers of two words.
_ROW_SCALE_WORDS = 2 + 16 * 2
_EPILOGUES = {"store": 0, "add": 1, "gate_mul": 2}
_SOURCE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class PackedMatrix:
    """A weight matrix W [n, k], packed once in the kernels' layout (csrc/matmul/matrix.h).

    Attributes:
        struct: the matrix as kernels take it; points to this object's memory.
    """

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
            memory: uint8 [packed_bytes(n, k, dtype, gated)], aligned to 64 bytes, to use instead
                of new memory.
        """
        if dtype not in DTYPES:
            raise ValueError(f"a packed matrix is float32, bfloat16 or int8, not {dtype}")
        if n <= 0 or k <= 0 or (gated and n % 2):
            raise ValueError(f"no matrix has the shape [{n}, {k}]{' of two halves' * gated}")
        _check_segments(segments, k, dtype)
        self.shape = (n, k)
        self.dtype = dtype
        self.gated = gated
        num_halves = 2 if gated else 1
        num_bytes = packed_bytes(n, k, dtype, gated)
        self._panel_bytes = padded_k(dtype, k) * PANEL * dtype.itemsize
        self._data = allocate(num_bytes) if memory is None else memory
        self._data[-num_halves * self._panel_bytes :].zero_()  # columns past the last
        self._columns = num_bytes // self._panel_bytes * PANEL
        quantized = dtype == torch.int8
        self._scales = torch.zeros(self._columns) if quantized else None
        self._column_sums = torch.zeros(self._columns, dtype=torch.int32) if quantized else None
        self._bias: Tensor | None = None
        self.struct = Matrix(
            DTYPES[dtype],
            n,
            k,
            self._data.data_ptr(),
            _address(self._scales),
            _address(self._column_sums),
            None,
            segments,
        )

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
        """Memory that the matrix takes."""
        tensors = (self._data, self._scales, self._column_sums, self._bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @property
    def scales(self) -> Tensor:
        """float32 [n], the quantization scale of each row of an int8 matrix."""
        if self._scales is None:
            raise ValueError(f"a {self.dtype} matrix has no scales")
        return self._in_order(self._scales)

    def rows(self, indices: Tensor) -> Tensor:
        """Reads rows of W as stored, [count, k]: an embedding lookup in a packed matrix."""
        if self.gated or self.dtype == torch.int8:
            raise ValueError(
                f"rows cannot be read from a {'gated ' * self.gated}{self.dtype} matrix"
            )
        group = 64 // PANEL // self.dtype.itemsize
        panels = self._data.view(self.dtype).view(self._columns // PANEL, -1, PANEL, group)
        rows = panels[indices // PANEL, :, indices % PANEL]
        return rows.reshape(indices.numel(), -1)[:, : self.shape[1]]

    def pack(self, kernels: CpuKernels, rows: Tensor, start: int = 0) -> None:
        """Packs rows of W from `start` on: float32, bfloat16 or float16 [count, k]."""
        n, k = self.shape
        if rows.dtype not in _SOURCE_TYPES or rows.ndim != 2 or rows.stride(1) != 1:
            raise ValueError(
                f"rows must be float32, bfloat16 or float16 with contiguous rows, not "
                f"{rows.dtype} with strides {rows.stride()}"
            )
        if rows.shape[1] != k or start < 0 or start + rows.shape[0] > n:
            raise ValueError(f"{list(rows.shape)} from row {start} on does not fit into [{n}, {k}]")
        for half, first, part in self._halves(rows, start):
            column = half * PANEL
            packing = Packing(
                _SOURCE_TYPES[part.dtype],
                part.data_ptr(),
                part.shape[0],
                k,
                part.stride(0),
                DTYPES[self.dtype],
                first,
                2 if self.gated else 1,
                self._data.data_ptr() + half * self._panel_bytes,
                None if self._scales is None else self._scales[column:].data_ptr(),
                None if self._column_sums is None else self._column_sums[column:].data_ptr(),
            )
            kernels.lib.taco_pack(kernels.pool, ctypes.byref(packing))

    def set_bias(self, bias: Tensor, start: int = 0) -> None:
        """Sets the bias, float [count], of rows from `start` on; 0 where none is set."""
        if self._bias is None:
            self._bias = torch.zeros(self._columns)
            self.struct.bias = self._bias.data_ptr()
        for half, first, part in self._halves(bias, start):
            self._bias[self._columns_of(half, first, part.shape[0])] = part.float()

    def _halves(self, rows: Tensor, start: int) -> list[tuple[int, int, Tensor]]:
        """(half, its first row, its rows) of the matrix, or of gate and up of a gated pair."""
        if not self.gated:
            return [(0, start, rows)]
        size = self.shape[0] // 2
        gate = rows[: max(0, size - start)]
        up = rows[gate.shape[0] :]
        parts = [(0, start, gate), (1, max(0, start - size), up)]
        return [part for part in parts if part[2].shape[0]]

    def _columns_of(self, half: int, first: int, count: int) -> Tensor:
        """The packed columns of some rows of a half."""
        rows = torch.arange(first, first + count)
        return rows + (rows // PANEL + half) * PANEL if self.gated else rows

    def _in_order(self, packed: Tensor) -> Tensor:
        if not self.gated:
            return packed[: self.shape[0]]
        size = self.shape[0] // 2
        return torch.cat([packed[self._columns_of(half, 0, size)] for half in (0, 1)])


class RowScales:
    """What the kernels keep of each row of int8 operands beside them (csrc/matmul/matrix.h)."""

    def __init__(self, count: int) -> None:
        self._words = torch.empty(count, _ROW_SCALE_WORDS)

    def data_ptr(self) -> int:
        return self._words.data_ptr()

    @property
    def scales(self) -> Tensor:
        """float32 [count]: what each row's operands are multiplied with."""
        return self._words[:, 0]

    @property
    def num_outliers(self) -> Tensor:
        """int32 [count]: values of each row that are kept in 16 bits."""
        return self._words.view(torch.int32)[:, 1]

    def high_parts(self, k: int) -> Tensor:
        """float32 [count, k]: what each value's operand lacks, in units of the row's scale."""
        parts = torch.zeros(self._words.shape[0], k)
        columns = self._words.view(torch.int32)
        for row, count in enumerate(self.num_outliers.tolist()):
            end = 2 + 2 * count
            parts[row, columns[row, 2:end:2].long()] = 254 * self._words[row, 3:end:2]
        return parts


class EncodedRows:
    """Rows of activations, encoded as operands for matrices of one type.

    Attributes:
        data: [count or more, padded k], operands of the instruction set, in its order
            (csrc/matmul/operand_layout.h).
        row_scales: their scales and outliers, for int8 only.
        struct: the rows as kernels take them; points to data and row_scales.
    """

    def __init__(self, kernels: CpuKernels, rows: Tensor, dtype: torch.dtype) -> None:
        """Encodes rows, float32 [count, k], each row contiguous."""
        if rows.dtype != torch.float32 or rows.ndim != 2 or rows.stride(1) != 1:
            raise ValueError(f"rows must be float32 with contiguous rows, not {rows.dtype}")
        count, k = rows.shape
        self.dtype = dtype
        self.k = k
        self.data = empty_operands(kernels, dtype, count, k)
        self.row_scales = RowScales(count) if dtype == torch.int8 else None
        scales = None if self.row_scales is None else self.row_scales.data_ptr()
        kernels.lib.taco_encode_rows(
            kernels.pool,
            DTYPES[dtype],
            count,
            k,
            rows.data_ptr(),
            rows.stride(0),
            self.data.data_ptr(),
            scales,
        )
        self.struct = Rows(count, self.data.data_ptr(), self.data.stride(0), scales)


def empty_operands(kernels: CpuKernels, dtype: torch.dtype, count: int, k: int) -> Tensor:
    """Memory for `count` rows of k operands of a matrix of `dtype`: [count or more, padded k]."""
    rows = 1 if dtype == torch.float32 else kernels.operand_tile_rows
    shape = (-(-count // rows) * rows, padded_k(dtype, k))
    return torch.empty(shape, dtype=operand_dtype(kernels, dtype))


def in_row_order(kernels: CpuKernels, operands: Tensor, count: int) -> Tensor:
    """Copies operands of bfloat16 or int8 matrices in the instruction set's order to row order.

    Args:
        operands: [count or more, padded k].

    Returns:
        [count, padded k].
    """
    piece, rows = 64 // operands.element_size(), kernels.operand_tile_rows
    if rows == 1:
        return operands[:count]
    tiles = operands.view(-1, operands.shape[1] // piece, rows, piece)
    return tiles.transpose(1, 2).reshape(operands.shape)[:count]


def multiply(
    kernels: CpuKernels,
    rows: EncodedRows,
    matrix: PackedMatrix,
    *,
    activation: str = "none",
    alpha: float = ALPHA,
    limit: float = math.inf,
    add_to: Tensor | None = None,
    factor: float = 1.0,
    as_operands: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Computes act(rows @ W.T + bias), or act(gate) * up of a gated pair, or adds to `add_to`.

    Args:
        activation, alpha, limit: as in `taco_kernels.reference.activation`, or "none".
        add_to: float32 [count, n], changed in place: factor * (rows @ W.T + bias) is added.
        as_operands: return operands of a bfloat16 matrix, in the instruction set's order; those
            past the columns are undefined.
        out: memory to use instead of new memory.

    Returns:
        float32 [count, n], or [count, n / 2] for a gated pair; or as `empty_operands`.
    """
    _check_product(rows, matrix)
    if activation != "none":
        check_activation(activation, gated=matrix.gated, limit=limit)
    count = rows.struct.count
    columns = matrix.shape[0] // (2 if matrix.gated else 1)
    if add_to is not None:
        _check_out(add_to, "add_to", count, columns)
        out = add_to
    elif as_operands:
        memory = empty_operands(kernels, torch.bfloat16, count, columns)
        if out is not None and (out.dtype, out.shape) != (memory.dtype, memory.shape):
            raise ValueError(f"out must be {memory.dtype} {list(memory.shape)}")
        out = memory if out is None else out
    elif out is None:
        out = torch.empty((count, columns))
    else:
        _check_out(out, "out", count, columns)
    epilogue = "gate_mul" if matrix.gated else "store" if add_to is None else "add"
    product = Product(
        rows.struct,
        matrix.struct,
        _EPILOGUES[epilogue],
        ACTIVATIONS[activation],
        out.data_ptr(),
        out.stride(0),
        as_operands,
        alpha,
        limit,
        factor,
    )
    kernels.lib.taco_multiply(kernels.pool, ctypes.byref(product))
    return out


def multiply_argmax(
    kernels: CpuKernels,
    rows: EncodedRows,
    matrix: PackedMatrix,
    logprobs: Tensor | None = None,
    masks: MaskColumns | None = None,
) -> Tensor:
    """int32 [count]: the column with the greatest value of each row, the first among equals.

    NO_TOKEN (see `taco_kernels.sampling_metadata`) where the greatest value is not finite.

    Args:
        logprobs: float32 [count], receives the log probabilities of these columns, with the values
            as logits: the same bits as `sampling.gather_logprobs` of the stored product. Undefined
            in rows with NO_TOKEN.
        masks: the columns that each row may choose; not with `logprobs`.
    """
    _check_product(rows, matrix)
    if logprobs is not None and masks is not None:
        raise ValueError("log probabilities are those of all columns: masks exclude them")
    count = rows.struct.count
    ranks, columns = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.int32)
    sums = None
    if logprobs is not None:
        if logprobs.dtype != torch.float32 or logprobs.shape != (count,):
            raise ValueError(
                f"log probabilities must be float32 [{count}], not {logprobs.dtype} "
                f"{list(logprobs.shape)}"
            )
        sums = torch.empty((count, -(-matrix.shape[0] // _PARTIAL_SUM_TOKENS), 2))
    kernels.lib.taco_multiply_argmax(
        kernels.pool,
        ctypes.byref(rows.struct),
        ctypes.byref(matrix.struct),
        ranks.data_ptr(),
        columns.data_ptr(),
        _address(sums),
        _address(logprobs),
        None if masks is None else ctypes.byref(masks.struct(count, matrix.shape[0])),
    )
    return columns


def packed_bytes(n: int, k: int, dtype: torch.dtype, gated: bool) -> int:
    """Bytes of a packed matrix [n, k] without its scales and bias."""
    num_halves = 2 if gated else 1
    num_panels = num_halves * -(-n // num_halves // PANEL)
    return num_panels * PANEL * padded_k(dtype, k) * dtype.itemsize


def padded_k(dtype: torch.dtype, k: int) -> int:
    """k of a matrix of `dtype`, padded to whole AMX tiles."""
    group = 64 // dtype.itemsize
    return k if dtype == torch.float32 else -(-k // group) * group


def operand_dtype(kernels: CpuKernels, dtype: torch.dtype) -> torch.dtype:
    """Type of the operands that the instruction set multiplies with a matrix of `dtype`."""
    if dtype == torch.bfloat16:
        return torch.bfloat16 if kernels.bf16_operand_bytes == 2 else torch.float32
    if dtype == torch.int8:
        return torch.int8 if kernels.int8_operand_bytes == 1 else torch.int16
    return dtype


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


def _check_out(out: Tensor, name: str, count: int, columns: int) -> None:
    if out.dtype != torch.float32 or out.shape != (count, columns) or out.stride(1) != 1:
        raise ValueError(f"{name} must be float32 [{count}, {columns}] with contiguous rows")


def _check_product(rows: EncodedRows, matrix: PackedMatrix) -> None:
    if rows.dtype != matrix.dtype or rows.k != matrix.shape[1]:
        raise ValueError(
            f"rows of {rows.dtype} with {rows.k} columns do not fit a matrix of {matrix.dtype} "
            f"with {matrix.shape[1]}"
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
