"""The products of LoRA adapters on the CPU. Reference: `taco_kernels.reference.adapters`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from taco_kernels.cpu.matmul import EncodedRows
from taco_kernels.cpu.packed_matrix import DTYPES, PackedMatrix
from taco_kernels.cpu.structs import AdapterProduct, Matrix
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Scratch
from taco_kernels.panels import PANEL


class PackedAdapters:
    """The matrices A [rank, k] and B [n, rank] of some adapters, which add B A x to one product.

    Attributes:
        dtype: of the matrices.
        shape: (n, k).
        packed_columns: of the sums, which have the order of the product's packed columns.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        matrices: Sequence[tuple[Tensor, Tensor] | None],
        dtype: torch.dtype,
        *,
        gated: bool = False,
    ) -> None:
        """Packs A and B of each adapter.

        Args:
            matrices: of each adapter; ranks may differ. None: it adds nothing.
            dtype: float32 or bfloat16, in which they are kept.
            gated: the matrix of the product is a gated pair.

        Raises:
            ValueError: no adapter has matrices, or their shapes do not fit.
        """
        given = [pair for pair in matrices if pair is not None]
        shapes = {(b.shape[0], a.shape[1]) for a, b in given}
        if len(shapes) != 1 or any(a.shape[0] != b.shape[1] for a, b in given):
            raise ValueError("adapters of one product need A [rank, k] and B [n, rank]")
        (self.shape,) = shapes
        self.dtype = dtype
        n, k = self.shape
        rank = max(a.shape[0] for a, _ in given)
        self._packed: list[PackedMatrix] = []
        # The structs of an adapter without matrices have the shape alone.
        self.a, self.b = (
            (Matrix * len(matrices))(*(shape for _ in matrices))
            for shape in (_shape_of(rank, k, dtype), _shape_of(n, rank, dtype))
        )
        for index, pair in enumerate(matrices):
            if pair is None:
                continue
            for structs, rows, columns, part, is_gated in (
                (self.a, rank, k, pair[0], False),
                (self.b, n, rank, pair[1], gated),
            ):
                whole = torch.zeros(rows, columns)
                whole[: part.shape[0], : part.shape[1]] = part
                matrix = PackedMatrix.from_tensor(kernels, whole, dtype, gated=is_gated)
                structs[index] = matrix.struct
                self._packed.append(matrix)
        self.packed_columns = self._packed[1].packed_columns

    @property
    def nbytes(self) -> int:
        """Memory that the matrices take."""
        return sum(matrix.nbytes for matrix in self._packed)

    @property
    def struct(self) -> AdapterProduct:
        """The product without a step's rows, ids, outputs and scratch."""
        return AdapterProduct(
            num_adapters=len(self.a),
            a=ctypes.addressof(self.a),
            b=ctypes.addressof(self.b),
            num_panels=self.packed_columns // PANEL,
        )


def multiply_adapters(
    kernels: CpuKernels,
    rows: EncodedRows,
    ids: Tensor,
    adapters: PackedAdapters,
    *,
    tokens: Tensor | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """B_a (A_a x) with the adapter a of each row; -0 for rows of none. A row's bits do not depend
    on the other rows.

    Args:
        ids: contiguous int32; negative: no adapter.
        tokens: contiguous int32 [count], the index in `ids` of each row; None: in order.
        scratch: memory to reuse between calls.

    Returns:
        float32 [count, packed columns].

    Raises:
        ValueError: the rows do not fit the adapters, or an id is no adapter's.
    """
    _, k = adapters.shape
    if (rows.dtype, rows.k) != (adapters.dtype, k):
        raise ValueError(
            f"rows of {rows.dtype} with {rows.k} columns do not fit adapters of {adapters.dtype} "
            f"with {k}"
        )
    count = rows.struct.count
    for numbers, name in ((ids, "ids"), (tokens, "tokens")):
        if numbers is None:
            continue
        if numbers.dtype != torch.int32 or numbers.ndim != 1 or not numbers.is_contiguous():
            raise ValueError(f"{name} must be contiguous int32 with one axis")
    if (ids.numel() if tokens is None else tokens.numel()) != count:
        raise ValueError(f"{count} rows need as many ids")
    if ids.numel() and ids.max() >= len(adapters.a):
        raise ValueError(f"an id is not below {len(adapters.a)}")
    if tokens is not None and count and (tokens.min() < 0 or tokens.max() >= ids.numel()):
        raise ValueError(f"a token is not in 0 to {ids.numel() - 1}")
    out = torch.empty(count, adapters.packed_columns)
    product = adapters.struct
    product.rows, product.ids = rows.struct, ids.data_ptr()
    product.tokens = None if tokens is None else tokens.data_ptr()
    product.out, product.out_stride = out.data_ptr(), out.stride(0)
    num_bytes = kernels.lib.taco_adapters_scratch_bytes(kernels.pool, ctypes.byref(product))
    memory = scratch or Scratch()
    product.scratch = memory.reserve(num_bytes)
    kernels.lib.taco_multiply_adapters(kernels.pool, ctypes.byref(product))
    return out


def _shape_of(n: int, k: int, dtype: torch.dtype) -> Matrix:
    return Matrix(type=DTYPES[dtype], n=n, k=k, segments=1)
