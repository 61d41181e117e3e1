"""LoRA adapters of a product on the CPU. Reference: `taco_kernels.reference.adapters`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from taco_kernels.cpu.matmul import EncodedRows, ProductCall
from taco_kernels.cpu.packed_matrix import DTYPES, PackedMatrix
from taco_kernels.cpu.structs import AdapterProduct, Adapters, Matrix
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Scratch
from taco_kernels.panels import PANEL, num_panels


class PackedAdapters:
    """The matrices A [rank, k] and B [n, rank] of some adapters, which add B A x to one product.

    Attributes:
        dtype: of the matrices.
        shape: (n, k).
        struct: the adapters as kernels take them; it points to this object's memory.
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
            matrices: of each adapter; ranks may differ. None: it adds nothing. Of parts of B that
                are zero, such as those of other weights of a fused one, nothing is computed.
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
        count = len(matrices)
        # The structs of an adapter without matrices have the shape alone.
        self._a = (Matrix * count)(*(_shape_of(rank, k, dtype) for _ in matrices))
        self._b = (Matrix * count)(*(_shape_of(n, rank, dtype) for _ in matrices))
        self._ranges = torch.zeros(count, num_panels(n, gated=gated), 2, dtype=torch.int32)
        self._packed: list[PackedMatrix] = []
        for index, pair in enumerate(matrices):
            if pair is None:
                continue
            a = PackedMatrix.from_tensor(kernels, _padded(pair[0], rank, k), dtype)
            b, self._ranges[index] = _packed_b(kernels, _padded(pair[1], n, rank), dtype, gated)
            self._a[index], self._b[index] = a.struct, b.struct
            self._packed += (a, b)
        starts = [self._ranges[index].data_ptr() for index in range(count)]
        self._starts = (ctypes.c_void_p * count)(*starts)
        self.struct = Adapters(
            count,
            ctypes.addressof(self._a),
            ctypes.addressof(self._b),
            ctypes.addressof(self._starts),
        )

    @property
    def count(self) -> int:
        return len(self._a)

    @property
    def nbytes(self) -> int:
        """Memory that the matrices take."""
        return sum(matrix.nbytes for matrix in self._packed)


def multiply_adapted(
    kernels: CpuKernels,
    product: ProductCall,
    rows: EncodedRows,
    ids: Tensor,
    adapters: PackedAdapters,
    *,
    tokens: Tensor | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """Computes a product to whose sums B_a (A_a x) is added, with the adapter a of each row.

    A row's bits do not depend on the other rows; those of a row without an adapter are those of
    the product without adapters.

    Args:
        rows: x as operands of the adapters' type.
        ids: contiguous int32; negative: no adapter.
        tokens: contiguous int32 [count], the index in `ids` of each row; None: in order.
        scratch: memory to reuse between calls.

    Returns:
        `product.out`.

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
    if ids.numel() and ids.max() >= adapters.count:
        raise ValueError(f"an id is not below {adapters.count}")
    if tokens is not None and count and (tokens.min() < 0 or tokens.max() >= ids.numel()):
        raise ValueError(f"a token is not in 0 to {ids.numel() - 1}")
    struct = AdapterProduct(adapters.struct, rows.struct, ids.data_ptr())
    struct.tokens = None if tokens is None else tokens.data_ptr()
    num_bytes = kernels.lib.taco_adapters_scratch_bytes(kernels.pool, ctypes.byref(struct))
    memory = scratch or Scratch()
    struct.scratch = memory.reserve(num_bytes)
    kernels.lib.taco_multiply_adapted(
        kernels.pool, ctypes.byref(struct), ctypes.byref(product.struct)
    )
    return product.out


def _shape_of(n: int, k: int, dtype: torch.dtype) -> Matrix:
    return Matrix(type=DTYPES[dtype], n=n, k=k, segments=1)


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    whole = torch.zeros(rows, columns)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return whole


def _packed_b(
    kernels: CpuKernels, b: Tensor, dtype: torch.dtype, gated: bool
) -> tuple[PackedMatrix, Tensor]:
    """B [n, rank] with the k of each panel's range alone, and the ranges: int32 [panels, 2]."""
    order = PackedMatrix(b.shape[0], 1, dtype, gated=gated).packed_order()
    rank = b.shape[1]
    # Kernels multiply pairs of bfloat16.
    num_columns = num_panels(b.shape[0], gated=gated) * PANEL
    is_used = torch.zeros(num_columns, rank + rank % 2, dtype=torch.bool)
    is_used[order, :rank] = b != 0
    pairs = is_used.view(-1, PANEL, is_used.shape[1] // 2, 2).any(3).any(1)
    numbers = torch.arange(pairs.shape[1])
    first = torch.where(pairs, numbers, pairs.shape[1]).amin(1)
    past = torch.where(pairs, numbers + 1, 0).amax(1)
    ranges = (2 * torch.stack([first.minimum(past), past], dim=1)).int()
    if dtype == torch.float32:
        ranges = ranges.clamp(max=rank)
    width = max(1, int((ranges[:, 1] - ranges[:, 0]).max()))
    padded = torch.nn.functional.pad(b, (0, width))
    columns = ranges[order // PANEL, :1].long() + torch.arange(width)
    own = padded.gather(1, columns.clamp(max=padded.shape[1] - 1))
    return PackedMatrix.from_tensor(kernels, own, dtype, gated=gated), ranges
