"""Matrix products on the CPU: encoded activations, product and argmax."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from taco_kernels.cpu.column_order import ColumnOrder
from taco_kernels.cpu.packed_matrix import DTYPES, WeightMatrix
from taco_kernels.cpu.structs import Product, Rows
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.library import CpuKernels
from taco_kernels.panels import padded_k
from taco_kernels.reference.activation import ALPHA, check_activation

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
_PARTIAL_SUM_TOKENS = 64  # csrc/sampling/sampling_args.h
# RowScale in csrc/matmul/matrix.h: a scale, the numbers of all outliers and of positive ones, and
# 16 outliers of two words.
_ROW_SCALE_WORDS = 3 + 16 * 2
_EPILOGUES = {"store": 0, "add": 1, "gate_mul": 2}


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
        words = self._words.view(torch.int32)
        for row, (count, num_positive) in enumerate(words[:, 1:3].tolist()):
            columns, quads = words[row, 3 : 3 + 2 * count].view(-1, 2).long().unbind(1)
            magnitudes = (quads & 0xFFFFFFFF) >> 8 * (columns % 4)
            magnitudes[num_positive:] *= -1
            parts[row, columns] = 254.0 * magnitudes
        return parts


class EncodedRows:
    """Rows of activations, encoded as operands for matrices of one type.

    Attributes:
        data: [count or more, padded k], operands of the instruction set, in its order
            (csrc/matmul/operand_layout.h).
        row_scales: their scales and outliers, for int8 only.
        struct: the rows as kernels take them; points to data and row_scales.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        rows: Tensor,
        dtype: torch.dtype,
        order: ColumnOrder | None = None,
    ) -> None:
        """Encodes rows, float32 [count, k], each row contiguous; int8 in an order of columns."""
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
            None if order is None else ctypes.byref(order.struct),
        )
        self.struct = Rows(count, self.data.data_ptr(), self.data.stride(0), scales)


def empty_operands(kernels: CpuKernels, dtype: torch.dtype, count: int, k: int) -> Tensor:
    """Memory for `count` rows of k operands of a matrix of `dtype`: [count or more, padded k]."""
    rows = 1 if dtype == torch.float32 else kernels.operand_tile_rows
    shape = (-(-count // rows) * rows, padded_k(dtype.itemsize, k))
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


class ProductOptions(TypedDict, total=False):
    """How a product is finished.

    Attributes:
        activation, alpha, limit: as in `taco_kernels.reference.activation`, or "none".
        add_to: float32 [count, n], changed in place: factor * (rows @ W.T + bias) is added.
        as_operands: return operands of a bfloat16 matrix, in the instruction set's order; those
            past the columns are undefined.
        out: memory to use instead of new memory.
    """

    activation: str
    alpha: float
    limit: float
    add_to: Tensor
    factor: float
    as_operands: bool
    out: Tensor


class ProductCall:
    """A matrix product whose rows, matrix and result stay where they are.

    Attributes:
        out: as `multiply` returns it.
        struct: the product as kernels take it.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        rows: EncodedRows,
        matrix: WeightMatrix,
        **options: Unpack[ProductOptions],
    ) -> None:
        """Arguments as for `multiply`."""
        _check_product(rows, matrix)
        activation, limit = options.get("activation", "none"), options.get("limit", math.inf)
        if activation != "none":
            check_activation(activation, gated=matrix.gated, limit=limit)
        as_operands, add_to = options.get("as_operands", False), options.get("add_to")
        count, columns = rows.struct.count, matrix.shape[0] // (2 if matrix.gated else 1)
        if add_to is None:
            self.out = _output(kernels, (count, columns), options.get("out"), as_operands)
        else:
            _check_out(add_to, "add_to", count, columns)
            self.out = add_to
        epilogue = "gate_mul" if matrix.gated else "store" if add_to is None else "add"
        self.struct = Product(
            rows.struct,
            matrix.struct,
            _EPILOGUES[epilogue],
            ACTIVATIONS[activation],
            self.out.data_ptr(),
            self.out.stride(0),
            as_operands,
            options.get("alpha", ALPHA),
            limit,
            options.get("factor", 1.0),
        )
        self._kept = (rows, matrix)  # the struct points into them


def multiply(
    kernels: CpuKernels,
    rows: EncodedRows,
    matrix: WeightMatrix,
    **options: Unpack[ProductOptions],
) -> Tensor:
    """Computes act(rows @ W.T + bias), or act(gate) * up of a gated pair, or adds to `add_to`.

    Returns:
        float32 [count, n], or [count, n / 2] for a gated pair; or as `empty_operands`.

    Raises:
        ValueError: the rows do not fit the matrix, or the memory or activation does not fit them.
    """
    call = ProductCall(kernels, rows, matrix, **options)
    multiply_in_turn(kernels, [call])
    return call.out


def multiply_in_turn(kernels: CpuKernels, calls: Sequence[ProductCall]) -> None:
    """Computes products one after the other without a pause, as a step of a model does."""
    products = (Product * len(calls))(*(call.struct for call in calls))
    kernels.lib.taco_multiply(kernels.pool, products, len(calls))


def multiply_argmax(
    kernels: CpuKernels,
    rows: EncodedRows,
    matrix: WeightMatrix,
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


def operand_dtype(kernels: CpuKernels, dtype: torch.dtype) -> torch.dtype:
    """Type of the operands that the instruction set multiplies with a matrix of `dtype`."""
    if dtype == torch.bfloat16:
        return torch.bfloat16 if kernels.bf16_operand_bytes == 2 else torch.float32
    if dtype == torch.int8:
        return torch.int8 if kernels.int8_operand_bytes == 1 else torch.int16
    return dtype


def _output(
    kernels: CpuKernels, shape: tuple[int, int], out: Tensor | None, as_operands: bool
) -> Tensor:
    """Returns `out` if it fits, or new memory if it is None."""
    if not as_operands:
        if out is None:
            return torch.empty(shape)
        _check_out(out, "out", *shape)
        return out
    memory = empty_operands(kernels, torch.bfloat16, *shape)
    if out is not None and (out.dtype, out.shape) != (memory.dtype, memory.shape):
        raise ValueError(f"out must be {memory.dtype} {list(memory.shape)}")
    return memory if out is None else out


def _check_out(out: Tensor, name: str, count: int, columns: int) -> None:
    if out.dtype != torch.float32 or out.shape != (count, columns) or out.stride(1) != 1:
        raise ValueError(f"{name} must be float32 [{count}, {columns}] with contiguous rows")


def _check_product(rows: EncodedRows, matrix: WeightMatrix) -> None:
    if rows.dtype != matrix.dtype or rows.k != matrix.shape[1]:
        raise ValueError(
            f"rows of {rows.dtype} with {rows.k} columns do not fit a matrix of {matrix.dtype} "
            f"with {matrix.shape[1]}"
        )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
