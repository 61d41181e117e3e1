"""The product of a mixture of experts on the CPU. Reference: `taco_kernels.reference.experts`."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taco_kernels.code_layout import RowSegment, coded_bytes
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.matmul import ACTIVATIONS, EncodedRows
from taco_kernels.cpu.packed_matrix import PackedMatrix, WeightMatrix
from taco_kernels.cpu.structs import ExpertProduct, GatedActivation, Matrix
from taco_kernels.group_codes import GroupCodes
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Scratch, allocate
from taco_kernels.panels import matrix_bytes
from taco_kernels.reference.activation import ALPHA, check_activation


class PackedExperts:
    """The matrices W [n, k] of all experts, packed one by one in one piece of memory.

    Attributes:
        shape: (num_experts, n, k).
        matrices: of the experts.
        structs: a Matrix per expert, as kernels take them; they point to this object's memory.
    """

    def __init__(
        self,
        num_experts: int,
        n: int,
        k: int,
        dtype: torch.dtype,
        *,
        gated: bool = False,
        codes: Sequence[RowSegment] | None = None,
        operands: torch.dtype = torch.bfloat16,
        memory: Tensor | None = None,
    ) -> None:
        """Allocates the matrices, which `pack` and `pack_codes` fill.

        Args:
            dtype, gated: as of a PackedMatrix.
            codes, operands: of the rows of each matrix, as of a CodedMatrix, instead of `dtype`.
            memory: uint8, for each expert as many bytes as its matrix takes, aligned to 64 bytes,
                to use instead of new memory.
        """
        if num_experts <= 0:
            raise ValueError(f"a mixture has 1 or more experts, not {num_experts}")
        self.shape = (num_experts, n, k)
        self.dtype = dtype if codes is None else operands
        self.gated = gated
        if codes is None:
            size = matrix_bytes(n, k, dtype.itemsize, gated=gated)
        else:
            size = coded_bytes(n, k, codes, gated)
        if memory is None:
            memory = allocate(num_experts * size)
        self.matrices: list[WeightMatrix] = [
            PackedMatrix(n, k, dtype, gated=gated, memory=memory[begin : begin + size])
            if codes is None
            else CodedMatrix(
                n, k, codes, operands=operands, gated=gated, memory=memory[begin : begin + size]
            )
            for begin in range(0, num_experts * size, size)
        ]
        self.structs = (Matrix * num_experts)(*(matrix.struct for matrix in self.matrices))

    @classmethod
    def from_tensor(
        cls,
        kernels: CpuKernels,
        weight: Tensor,
        dtype: torch.dtype | None = None,
        *,
        bias: Tensor | None = None,
        gated: bool = False,
    ) -> PackedExperts:
        """Packs weight [num_experts, n, k], and bias [num_experts, n]."""
        num_experts, n, k = weight.shape
        experts = cls(num_experts, n, k, dtype or weight.dtype, gated=gated)
        for expert, rows in enumerate(weight):
            experts.pack(kernels, expert, rows)
            if bias is not None:
                experts.set_bias(expert, bias[expert])
        return experts

    @property
    def nbytes(self) -> int:
        """Memory that the matrices take."""
        return sum(matrix.nbytes for matrix in self.matrices)

    def pack(self, kernels: CpuKernels, expert: int, rows: Tensor, start: int = 0) -> None:
        """Packs rows of an expert's W from `start` on: float32, bfloat16 or float16 [count, k]."""
        self._matrix(expert).pack(kernels, rows, start)

    def pack_codes(
        self, kernels: CpuKernels, expert: int, codes: GroupCodes, start: int = 0
    ) -> None:
        """Packs codes of rows of an expert's W from `start` on, as `CodedMatrix.pack_codes`."""
        matrix = self._matrix(expert)
        if not isinstance(matrix, CodedMatrix):
            raise ValueError(f"the experts are {self.dtype}, not codes")
        matrix.pack_codes(kernels, codes, start)

    def set_bias(self, expert: int, bias: Tensor, start: int = 0) -> None:
        """Sets the bias, float [count], of an expert's rows from `start` on."""
        matrix = self._matrix(expert)
        matrix.set_bias(bias, start)
        self.structs[expert] = matrix.struct

    def _matrix(self, expert: int) -> WeightMatrix:
        if not 0 <= expert < len(self.matrices):
            raise ValueError(f"expert {expert} is not one of {len(self.matrices)}")
        return self.matrices[expert]


def gated_activation(
    activation: str, alpha: float = ALPHA, limit: float = math.inf
) -> GatedActivation:
    """The gate of an expert as kernels take it.

    Args:
        activation, alpha, limit: as in `taco_kernels.reference.activation.act_mul`.

    Raises:
        ValueError: the activation is unknown, or its limit is not positive.
    """
    check_activation(activation, gated=True, limit=limit)
    return GatedActivation(ACTIVATIONS[activation], alpha, limit)


def multiply_experts(
    kernels: CpuKernels,
    rows: EncodedRows,
    ids: Tensor,
    weights: Tensor,
    gate_up: PackedExperts,
    down: PackedExperts,
    *,
    activation: str = "silu",
    alpha: float = ALPHA,
    limit: float = math.inf,
    add_to: Tensor | None = None,
    scratch: Scratch | None = None,
) -> Tensor:
    """Sum over the chosen experts e, in the order of the choice, of
    weight * down_e(act(gate_e(x), up_e(x))). A row's bits do not depend on the other rows.

    Args:
        ids: int32 [count, top_k], contiguous; an expert may be chosen twice.
        weights: float32 [count, top_k], contiguous.
        gate_up: gated, [num_experts, 2 * intermediate_size, k of the rows].
        down: [num_experts, out_size, intermediate_size], of the same type.
        activation, alpha, limit: as in `taco_kernels.reference.activation.act_mul`.
        add_to: float32 [count, out_size], changed in place.
        scratch: memory to reuse between calls.

    Returns:
        float32 [count, out_size].

    Raises:
        ValueError: a tensor or matrix has the wrong type or shape, or an id is no expert's.
    """
    num_experts, n, k = gate_up.shape
    if (
        not gate_up.gated
        or down.gated
        or (num_experts, n // 2) != (down.shape[0], down.shape[2])
        or gate_up.dtype != down.dtype
    ):
        raise ValueError(
            f"gate_up {gate_up.dtype} {list(gate_up.shape)} and down {down.dtype} "
            f"{list(down.shape)} are not the matrices of one mixture"
        )
    if rows.dtype != gate_up.dtype or rows.k != k:
        raise ValueError(
            f"rows of {rows.dtype} with {rows.k} columns do not fit experts of {gate_up.dtype} "
            f"with {k}"
        )
    count, out_size = rows.struct.count, down.shape[1]
    _check_choice(ids, weights, count, num_experts)
    out = torch.empty((count, out_size)) if add_to is None else add_to
    if out.dtype != torch.float32 or out.shape != (count, out_size) or out.stride(1) != 1:
        raise ValueError(f"add_to must be float32 [{count}, {out_size}] with contiguous rows")
    product = ExpertProduct(
        rows.struct,
        ids.shape[1],
        num_experts,
        ids.data_ptr(),
        ids.shape[1],
        weights.data_ptr(),
        ids.shape[1],
        ctypes.addressof(gate_up.structs),
        ctypes.addressof(down.structs),
        gated_activation(activation, alpha, limit),
        out.data_ptr(),
        out.stride(0),
        add_to is not None,
    )
    num_bytes = kernels.lib.taco_experts_scratch_bytes(kernels.pool, ctypes.byref(product))
    memory = scratch or Scratch()
    product.scratch = memory.reserve(num_bytes)
    kernels.lib.taco_multiply_experts(kernels.pool, ctypes.byref(product))
    return out


def _check_choice(ids: Tensor, weights: Tensor, count: int, num_experts: int) -> None:
    top_k = ids.shape[-1]
    for tensor, dtype, name in ((ids, torch.int32, "ids"), (weights, torch.float32, "weights")):
        if tensor.dtype != dtype or tensor.shape != (count, top_k) or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} [{count}, top_k], not {tensor.dtype} "
                f"{list(tensor.shape)}"
            )
    if top_k < 1 or (count and (ids.min() < 0 or ids.max() >= num_experts)):
        raise ValueError(f"each row must choose experts 0 to {num_experts - 1}")
