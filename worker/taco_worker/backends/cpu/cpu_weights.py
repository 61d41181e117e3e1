"""Packs a checkpoint's tensors for the CPU kernels, one by one as they are read."""

from __future__ import annotations

import math
from itertools import chain

import torch
from torch import Tensor

from taco_kernels.cpu.experts import PackedExperts
from taco_kernels.cpu.matmul import PANEL, PackedMatrix, packed_bytes
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Arena
from taco_worker.backends.cpu.lowered_ops import LoweredProgram, MatrixType
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.linear import HeadLinear, Linear

_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MATRIX_TYPES: dict[torch.dtype, MatrixType] = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
}


class CpuWeights:
    """A `WeightSink` for the CPU kernels.

    Matrices are packed, and quantized except for those of routers; norms and biases become
    float32. If the LM head is tied to the embeddings and holds the same numbers, embeddings are
    read from it; otherwise they stay in the mapped file.

    Attributes:
        program: the plan, lowered for these matrices.
        matrix_dtype: the stored dtype of matrices.
        matrices, experts, vectors, tables: by parameter.
    """

    def __init__(
        self,
        plan: ModelPlan,
        kernels: CpuKernels,
        *,
        dtype: torch.dtype,
        quantization: str | None,
    ) -> None:
        """Raises ValueError for ops that the kernels do not support."""
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.matrix_dtype = torch.int8 if quantization == "int8" else dtype
        self.matrices: dict[str, PackedMatrix] = {}
        self.experts: dict[str, PackedExperts] = {}
        self.vectors: dict[str, Tensor] = {}
        self.tables: dict[str, Tensor] = {}
        self._plan = plan
        self._kernels = kernels
        ops = list(chain(plan.ops, plan.logits))
        linears = [op for op in ops if isinstance(op, Linear)]
        self._linear_weights = {op.weight for op in linears}
        self._head_weights = {op.weight for op in ops if isinstance(op, HeadLinear)}
        self._weight_of_bias = {op.bias: op.weight for op in linears if op.bias is not None}
        self._table_names = {op.table for op in ops if isinstance(op, Embed)}
        mixtures = [op for op in ops if isinstance(op, Experts)]
        self._gated_experts = {op.gate_up for op in mixtures}
        self._expert_weights = {name for op in mixtures for name in (op.gate_up, op.down)}
        self._experts_of_bias = {
            bias: weight
            for op in mixtures
            for bias, weight in ((op.gate_up_bias, op.gate_up), (op.down_bias, op.down))
            if bias is not None
        }
        logits = {op.logits for op in ops if isinstance(op, Route)}
        self._router_weights = {op.weight for op in linears if op.out in logits}
        names = self._linear_weights | self._head_weights | self._expert_weights
        types = {name: _MATRIX_TYPES[self._dtype_of(name)] for name in names}
        self.program: LoweredProgram = lower_plan(plan, types)
        self._memory = Arena(sum(map(self._packed_bytes, names)))

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        rows = (rows if rows.dtype in _STORED_DTYPES else rows.float()).contiguous()
        if expert is not None:
            self._put_expert(parameter, start, rows, expert)
            return
        if parameter in self._head_weights:
            self._pack_heads(parameter, start, rows)
            return
        if parameter in self._linear_weights:
            self._matrix(parameter).pack(self._kernels, rows, start)
        if parameter in self._table_names:
            # Packed with the same numbers, they need not be kept twice.
            if parameter not in self._linear_weights or rows.dtype != self.matrix_dtype:
                self.tables[parameter] = rows
        elif weight := self._weight_of_bias.get(parameter):
            self._matrix(weight).set_bias(rows, start)
        elif parameter not in self._linear_weights:
            shape = self._plan.parameters[parameter].shape
            vector = self.vectors.setdefault(parameter, torch.empty(shape))
            vector[start : start + rows.shape[0]] = rows

    def _put_expert(self, parameter: str, start: int, rows: Tensor, expert: int) -> None:
        if parameter in self._expert_weights:
            self._experts(parameter).pack(self._kernels, expert, rows, start)
        else:
            self._experts(self._experts_of_bias[parameter]).set_bias(expert, rows, start)

    @property
    def nbytes(self) -> int:
        """Memory of the weights without embeddings, of which only used rows are read."""
        kinds = (self.matrices, self.experts, self.vectors)
        return sum(one.nbytes for kind in kinds for one in kind.values())

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings, float32 [num_rows, embedding_size], of token ids [num_rows]."""
        name = self._plan.embedding_table
        if name in self.tables:
            return self.tables[name][token_ids].float()
        return self.matrices[name].rows(token_ids).float()

    def _pack_heads(self, parameter: str, first: int, heads: Tensor) -> None:
        """Pack heads [count, out, in] one after another, each in whole panels."""
        num_heads, n, k = self._plan.parameters[parameter].shape
        padded = -(-n // PANEL) * PANEL
        if parameter not in self.matrices:
            memory = self._memory.take(self._packed_bytes(parameter))
            self.matrices[parameter] = PackedMatrix(
                num_heads * padded, k, self.matrix_dtype, memory=memory
            )
        for head, rows in enumerate(heads, first):
            self.matrices[parameter].pack(self._kernels, rows, head * padded)

    def _matrix(self, parameter: str) -> PackedMatrix:
        if parameter not in self.matrices:
            n, k = self._plan.parameters[parameter].shape
            memory = self._memory.take(self._packed_bytes(parameter))
            self.matrices[parameter] = PackedMatrix(
                n,
                k,
                self._dtype_of(parameter),
                gated=parameter in self.program.gated,
                segments=self.program.segments.get(parameter, 1),
                memory=memory,
            )
        return self.matrices[parameter]

    def _experts(self, parameter: str) -> PackedExperts:
        if parameter not in self.experts:
            count, n, k = self._plan.parameters[parameter].shape
            memory = self._memory.take(self._packed_bytes(parameter))
            gated = parameter in self._gated_experts
            self.experts[parameter] = PackedExperts(
                count, n, k, self.matrix_dtype, gated=gated, memory=memory
            )
        return self.experts[parameter]

    def _packed_bytes(self, parameter: str) -> int:
        """Memory of a matrix, or of one for each expert or head."""
        *several, n, k = self._plan.parameters[parameter].shape
        gated = parameter in self.program.gated or parameter in self._gated_experts
        return math.prod(several) * packed_bytes(n, k, self._dtype_of(parameter), gated)

    def _dtype_of(self, parameter: str) -> torch.dtype:
        return self.dtype if parameter in self._router_weights else self.matrix_dtype
