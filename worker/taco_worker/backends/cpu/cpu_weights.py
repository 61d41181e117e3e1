"""Packs a checkpoint's tensors for the CPU kernels, one by one as they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from taco_kernels.code_layout import RowSegment, takes_int8
from taco_kernels.cpu.adapters import PackedAdapters
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.column_order import ColumnOrder
from taco_kernels.cpu.experts import PackedExperts
from taco_kernels.cpu.packed_matrix import PackedMatrix, WeightMatrix
from taco_kernels.group_codes import GroupCodes
from taco_kernels.library import CpuKernels
from taco_kernels.panels import PANEL, matrix_bytes
from taco_worker.backends.cpu.early_weights import EarlyWeights
from taco_worker.backends.cpu.kept_codes import gated_matrices, kept_bytes, kept_codes
from taco_worker.backends.cpu.lowered_ops import LoweredProgram, MatrixType
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.backends.cpu.matrix_memory import MatrixMemory
from taco_worker.backends.cpu.matrix_types import matrix_types
from taco_worker.backends.cpu.pending_codes import PendingCodes
from taco_worker.models.code_segments import CodeSegment
from taco_worker.models.int8_activations import no_int8_activations
from taco_worker.models.lora.factors import Factors
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.ops.linear import HeadLinear, Linear

_STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NUMBER_TYPES: dict[torch.dtype, MatrixType] = {torch.float32: "f32", torch.bfloat16: "bf16"}
_DTYPES: dict[MatrixType, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
}


class CpuWeights:
    """A `WeightSink` for the CPU kernels.

    Matrices are packed, and quantized except for those of routers; norms and biases become
    float32. If the LM head is tied to the embeddings and holds the same numbers, embeddings are
    read from it; otherwise they stay in the mapped file.

    Attributes:
        matrix_dtype: the stored dtype of matrices.
        matrices, experts, vectors, tables: by parameter.
        adapters: of the linear layers that are adapted, by the parameter of their weight.
    """

    def __init__(
        self,
        plan: ModelPlan,
        kernels: CpuKernels,
        *,
        dtype: torch.dtype,
        quantization: str | None,
        quantizes_lm_head: bool = False,
        codes: Mapping[str, Sequence[CodeSegment]] | None = None,
        activations: str = "auto",
        early_weights: EarlyWeights | None = None,
    ) -> None:
        """Packs matrices in `dtype`, or all of them or the LM head in int8.

        Args:
            codes: of the rows of parameters, as the checkpoint has them. They are kept in models
                of bfloat16.
            activations: what is multiplied with codes: bfloat16; auto: int8 where the codes allow
                it, else bfloat16; int8: they must.
            early_weights: memory for the matrices, and those that are packed in it, if they fit.

        Raises:
            ValueError: the plan has ops that the kernels do not support, or codes do not allow
                int8 activations.
        """
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.matrix_dtype = torch.int8 if quantization == "int8" else dtype
        self.matrices: dict[str, WeightMatrix] = {}
        self.experts: dict[str, PackedExperts] = {}
        self.vectors: dict[str, Tensor] = {}
        self.tables: dict[str, Tensor] = {}
        self.adapters: dict[str, PackedAdapters] = {}
        self._plan = plan
        self._kernels = kernels
        ops = list(chain(plan.ops, plan.logits))
        linears = [op for op in ops if isinstance(op, Linear)]
        self._linear_weights = {op.weight for op in linears}
        self._head_weights = {op.weight for op in ops if isinstance(op, HeadLinear)}
        self._weight_of_bias = {op.bias: op.weight for op in linears if op.bias is not None}
        self._table_names = {op.table for op in ops if isinstance(op, Embed)}
        mixtures = self._mixtures = [op for op in ops if isinstance(op, Experts)]
        self._expert_weights = {name for op in mixtures for name in (op.gate_up, op.down)}
        self._experts_of_bias = {
            bias: weight
            for op in mixtures
            for bias, weight in ((op.gate_up_bias, op.gate_up), (op.down_bias, op.down))
            if bias is not None
        }
        self._types = matrix_types(
            plan,
            _NUMBER_TYPES[dtype],
            quantization,
            quantizes_lm_head=quantizes_lm_head,
            coded=codes or {},
        )
        self._lowered: LoweredProgram = lower_plan(plan, self._types)
        self._gated = gated_matrices(plan, self._lowered)
        self._codes = self._kept_codes(codes or {})
        self._activations = activations
        self._int8_activations = self._of_int8_activations()
        for name in self._codes.keys() - (set() if kernels.has_tiles else self._int8_activations):
            self._codes[name] = tuple(segment.widened() for segment in self._codes[name])
        self._pending = {
            name: PendingCodes(plan.parameters[name].shape[0])
            for name in self._int8_activations
            if any(one.layout and one.layout.has_column_groups for one in self._codes[name])
        }
        num_bytes = sum(map(self._packed_bytes, self.matrix_names))
        self._memory = MatrixMemory(num_bytes, early_weights, kernels.isa, self._types)

    @property
    def program(self) -> LoweredProgram:
        """The plan, lowered for these matrices; they must be loaded."""
        if not self._int8_activations:
            return self._lowered
        names: dict[bytes, str] = {}
        orders = {
            name: names.setdefault(matrix.column_order.key, name)
            for name, matrix in self.matrices.items()
            if isinstance(matrix, CodedMatrix) and matrix.column_order is not None
        }
        types = self._types | dict.fromkeys(self._int8_activations, "i8")
        return lower_plan(self._plan, types, orders)

    @property
    def memory(self) -> Tensor:
        """The memory of all matrices, uint8."""
        return self._memory.whole

    @property
    def instruction_set(self) -> str:
        return self._kernels.isa

    @property
    def kernel_hash(self) -> str:
        """Of the source code of the kernels, which pack matrices."""
        return str(self._kernels.lib.taco_source_hash().decode())

    @property
    def matrix_names(self) -> set[str]:
        return self._types.keys() | self._codes.keys()

    @property
    def table_names(self) -> set[str]:
        return self._table_names

    @property
    def codes(self) -> Mapping[str, Sequence[RowSegment]]:
        """The rows of the parameters that are kept as codes."""
        return self._codes

    @property
    def int8_activations(self) -> frozenset[str]:
        """The matrices of codes that multiply int8 activations; they must be loaded."""
        return self._int8_activations

    def restrict_int8_activations(self, parameters: frozenset[str]) -> None:
        """Take these `int8_activations`, of weights that were loaded before.

        Raises:
            ValueError: they are not those of the same weights.
        """
        others = self._int8_activations - parameters
        if not parameters <= self._int8_activations or not others <= self._pending.keys():
            raise ValueError("other matrices multiply int8 activations")
        self._int8_activations = parameters
        self._pending.clear()

    def create_matrix(self, parameter: str, order: ColumnOrder | None = None) -> None:
        """Give a matrix its memory, without content, and the order of its columns."""
        if parameter in self._expert_weights:
            self._experts(parameter)
        elif parameter in self._head_weights:
            self._heads(parameter)
        else:
            self._matrix(parameter, order)

    def note_cache_size(self, num_bytes: int) -> None:
        """Set `is_cached` of all matrices: whether they fit together in a cache of this size.

        Kernels read weights from memory in another order than weights from the cache. This is an
        estimate: other models and processes use the cache too.
        """
        is_cached = self.memory.numel() <= num_bytes
        structs = [matrix.struct for matrix in self.matrices.values()]
        for struct in chain(structs, *(experts.structs for experts in self.experts.values())):
            struct.is_cached = is_cached

    def matrix_starts(self) -> dict[str, int]:
        """Where each matrix is in `memory`, in the order of their creation."""
        base = self.memory.data_ptr()
        starts = {name: one.struct.data - base for name, one in self.matrices.items()}
        starts |= {name: one.structs[0].data - base for name, one in self.experts.items()}
        return dict(sorted(starts.items(), key=lambda item: item[1]))

    def map_memory(self, file: Path) -> None:
        """Replace the content of `memory` by that of a file of the same size."""
        self._memory.map_file(file)

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        rows = (rows if rows.dtype in _STORED_DTYPES else rows.float()).contiguous()
        if expert is not None:
            self._put_expert(parameter, start, rows, expert)
            return
        if parameter in self._head_weights:
            self._pack_heads(parameter, start, rows)
            return
        if parameter in self._linear_weights:
            matrix = self._matrix(parameter)
            first = self._memory.num_packed_rows(parameter, start)
            if first < rows.shape[0]:
                matrix.pack(self._kernels, rows[first:], start + first)
        if parameter in self._table_names:
            # Packed with the same numbers, they need not be kept twice.
            if parameter not in self._linear_weights or rows.dtype != self._dtype_of(parameter):
                self.tables[parameter] = rows
        elif weight := self._weight_of_bias.get(parameter):
            if weight in self._pending:
                self._pending[weight].add_bias(rows, start)
            else:
                self._matrix(weight).set_bias(rows, start)
        elif parameter not in self._linear_weights:
            shape = self._plan.parameters[parameter].shape
            vector = self.vectors.setdefault(parameter, torch.empty(shape))
            vector[start : start + rows.shape[0]] = rows

    def takes_codes(self, parameter: str) -> bool:
        return parameter in self._codes

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        if expert is not None:
            self._experts(parameter).pack_codes(self._kernels, expert, codes, start)
            return
        if pending := self._pending.get(parameter):
            pending.add(codes, start)
            if pending.is_complete:
                self._pack_pending(parameter)
            return
        matrix = self._matrix(parameter)
        assert isinstance(matrix, CodedMatrix)
        matrix.pack_codes(self._kernels, codes, start)

    def _pack_pending(self, parameter: str) -> None:
        """Choose the operands of a matrix whose columns have orders, and pack it."""
        pending = self._pending.pop(parameter)
        order = None
        try:
            order = pending.order()
        except ValueError as error:
            if self._activations == "int8":
                raise ValueError(
                    f"the codes of {parameter} do not multiply int8 activations: {error}; use "
                    "quantized_activations auto"
                ) from None
            self._int8_activations -= {parameter}
        matrix = self._matrix(parameter, order)
        assert isinstance(matrix, CodedMatrix)
        for codes, start in pending.codes:
            matrix.pack_codes(self._kernels, codes, start)
        for bias, start in pending.biases:
            matrix.set_bias(bias, start)

    def pack_adapters(self, factors: Iterable[tuple[str, Sequence[Factors | None]]]) -> None:
        """Pack A and B of the adapters of each weight; they are not quantized."""
        for parameter, of_adapters in factors:
            self.adapters[parameter] = PackedAdapters(
                self._kernels,
                of_adapters,
                torch.float32 if self._types.get(parameter) == "f32" else torch.bfloat16,
                gated=parameter in self._lowered.gated,
            )

    def _put_expert(self, parameter: str, start: int, rows: Tensor, expert: int) -> None:
        if parameter in self._expert_weights:
            self._experts(parameter).pack(self._kernels, expert, rows, start)
        else:
            self._experts(self._experts_of_bias[parameter]).set_bias(expert, rows, start)

    @property
    def nbytes(self) -> int:
        """Memory of the weights without embeddings, of which only used rows are read."""
        kinds = (self.matrices, self.experts, self.vectors, self.adapters)
        return sum(one.nbytes for kind in kinds for one in kind.values())

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings, float32 [num_rows, embedding_size], of token ids [num_rows]."""
        name = self._plan.embedding_table
        if name in self.tables:
            return self.tables[name][token_ids].float()
        return self.matrices[name].rows(self._kernels, token_ids)

    def _pack_heads(self, parameter: str, first: int, heads: Tensor) -> None:
        """Pack heads [count, out, in] one after another, each in whole panels."""
        matrix = self._heads(parameter)
        padded = matrix.shape[0] // self._plan.parameters[parameter].shape[0]
        for head, rows in enumerate(heads, first):
            matrix.pack(self._kernels, rows, head * padded)

    def _heads(self, parameter: str) -> WeightMatrix:
        if parameter not in self.matrices:
            num_heads, n, k = self._plan.parameters[parameter].shape
            padded = -(-n // PANEL) * PANEL
            memory = self._memory.take(parameter, self._packed_bytes(parameter))
            self.matrices[parameter] = PackedMatrix(
                num_heads * padded, k, self.matrix_dtype, memory=memory
            )
        return self.matrices[parameter]

    def _kept_codes(
        self, codes: Mapping[str, Sequence[CodeSegment]]
    ) -> dict[str, tuple[RowSegment, ...]]:
        if self.matrix_dtype != torch.bfloat16:
            return {}
        return dict(kept_codes(self._plan, codes, self._gated))

    def _of_int8_activations(self) -> frozenset[str]:
        """The matrices of codes that multiply int8 activations.

        Raises:
            ValueError: int8 is wanted, and a matrix of codes does not allow it.
        """
        wanted = self._activations
        if wanted == "bfloat16":
            return frozenset()
        names = self._codes.keys() & (self._linear_weights | self._expert_weights)
        found = {name for name in names if self._takes_int8(name)}
        for op in self._mixtures:
            if not {op.gate_up, op.down} <= found:
                found -= {op.gate_up, op.down}
        if wanted == "int8" and (others := sorted(names - found - self._table_names)):
            raise no_int8_activations(others[0])
        return frozenset(found)

    def _takes_int8(self, parameter: str) -> bool:
        k = self._plan.parameters[parameter].shape[-1]
        # The rows of experts are written in one order, and embeddings are read in order.
        is_in_order = parameter in self._expert_weights | self._table_names
        return all(
            segment.layout is not None
            and takes_int8(segment.layout, k, on_tiles=self._kernels.has_tiles)
            and not (is_in_order and segment.layout.has_column_groups)
            for segment in self._codes[parameter]
        )

    def _operands_of(self, parameter: str) -> torch.dtype:
        return torch.int8 if parameter in self._int8_activations else torch.bfloat16

    def _matrix(self, parameter: str, order: ColumnOrder | None = None) -> WeightMatrix:
        if parameter not in self.matrices:
            n, k = self._plan.parameters[parameter].shape
            memory = self._memory.take(parameter, self._packed_bytes(parameter))
            gated, segments = parameter in self._gated, self._lowered.segments.get(parameter, 1)
            if codes := self._codes.get(parameter):
                self.matrices[parameter] = CodedMatrix(
                    n,
                    k,
                    codes,
                    operands=(operands := self._operands_of(parameter)),
                    order=order,
                    gated=gated,
                    segments=1 if operands == torch.int8 else segments,
                    memory=memory,
                )
            else:
                self.matrices[parameter] = PackedMatrix(
                    n, k, self._dtype_of(parameter), gated=gated, segments=segments, memory=memory
                )
                if arrays := self._memory.column_arrays(parameter):
                    self.matrices[parameter].restore(arrays)
        return self.matrices[parameter]

    def _experts(self, parameter: str) -> PackedExperts:
        if parameter not in self.experts:
            count, n, k = self._plan.parameters[parameter].shape
            memory = self._memory.take(parameter, self._packed_bytes(parameter))
            gated, codes = parameter in self._gated, self._codes.get(parameter)
            self.experts[parameter] = PackedExperts(
                count,
                n,
                k,
                self.matrix_dtype,
                gated=gated,
                codes=codes,
                operands=self._operands_of(parameter),
                memory=memory,
            )
        return self.experts[parameter]

    def _packed_bytes(self, parameter: str) -> int:
        """Memory of a matrix, or of one for each expert or head."""
        *several, n, k = self._plan.parameters[parameter].shape
        gated, codes = parameter in self._gated, self._codes.get(parameter)
        if codes is not None:
            return kept_bytes(self._plan, parameter, codes, is_gated=gated)
        return math.prod(several) * matrix_bytes(
            n, k, self._dtype_of(parameter).itemsize, gated=gated
        )

    def _dtype_of(self, parameter: str) -> torch.dtype:
        return _DTYPES[self._types[parameter]]
