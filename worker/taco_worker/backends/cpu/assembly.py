"""Fills the structs of a lowered program with the addresses of loaded weights."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.cpu import program_structs as abi
from taco_kernels.cpu.attention import attention_struct
from taco_kernels.cpu.experts import gated_activation
from taco_kernels.cpu.kv_cache import PagedKV
from taco_kernels.cpu.matmul import ACTIVATIONS
from taco_kernels.cpu.program import ProgramRunner
from taco_kernels.cpu.routing import router_struct
from taco_kernels.cpu.structs import MATRIX_TYPES, ExpertProduct
from taco_kernels.library import CpuKernels
from taco_kernels.reference.rotary import ROTARY_STYLES
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.backends.cpu.lowered_ops import LoweredOp
from taco_worker.backends.cpu.recurrence_structs import convolution_struct, recurrence_struct
from taco_worker.layers.attention import attention_options
from taco_worker.layers.rotary import cos_sin_table
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace
from taco_worker.models.plan.slices import Slice
from taco_worker.models.step_states import entry_starts


class Assembly:
    """Makes the runner of a program, and owns the arrays that only its structs point to."""

    def __init__(self, plan: ModelPlan, weights: CpuWeights, num_positions: int) -> None:
        """`weights` must be loaded; rope tables are made for `num_positions`."""
        self._plan = plan
        self._weights = weights
        self._indices = {name: index for index, name in enumerate(weights.program.buffers)}
        self._options: list[AttentionOptions] = []
        self._owned: list[npt.NDArray[np.int32]] = []
        self._state_starts = entry_starts(plan.states)
        self._taps: list[Tensor] = []
        self._ropes: dict[str, tuple[Tensor, Tensor]] = {}
        for name, table in plan.rope_tables.items():
            cos_sin = cos_sin_table(
                table.rotary,
                table.rotary_dim,
                num_positions,
                torch.device("cpu"),
                growth=table.growth,
            )
            cosines, sines = cos_sin.chunk(2, dim=1)
            self._ropes[name] = cosines.contiguous(), sines.contiguous()

    def runner(self, kernels: CpuKernels, cache: PagedKV) -> ProgramRunner:
        lowered, matrices = self._weights.program, self._weights.matrices
        buffers = [
            abi.Buffer(
                columns=buffer.columns,
                type=MATRIX_TYPES[buffer.type],
                num_groups=buffer.num_groups,
                is_local=buffer.is_local,
                clears_tail=buffer.clears_tail,
                is_restricted=buffer.is_restricted,
            )
            for buffer in lowered.buffers.values()
        ]
        stages = [abi.Stage(stage.first, stage.count, stage.by_chunks) for stage in lowered.stages]
        program = abi.Program(
            hidden=self._indices[lowered.hidden],
            logit_scale=lowered.logit_scale,
            logit_cap=lowered.logit_cap,
        )
        if lowered.lm_head is not None:
            program.lm_head = matrices[lowered.lm_head].struct
        if lowered.embed_out is not None:
            program.embed_out = matrices[lowered.embed_out].struct
        ops = [self._op(op) for op in lowered.ops]
        return ProgramRunner(kernels, buffers, ops, stages, program, cache)

    def _op(self, lowered: LoweredOp) -> abi.Op:
        op = abi.Op(
            kind=abi.OP_KINDS.index(lowered.kind),
            x=self._columns(lowered.x),
            y=self._columns(lowered.y),
            out=self._columns(lowered.out),
            indexes_positions=lowered.indexes_positions,
            adds=lowered.adds,
            offset=lowered.offset,
            epilogue=abi.EPILOGUES[lowered.epilogue],
            activation=ACTIVATIONS[lowered.activation],
            is_gated=lowered.is_gated,
            norm=abi.NORM_KINDS[lowered.norm],
            eps=lowered.eps,
            weight=self._vector(lowered.weight),
            bias=self._vector(lowered.bias) if lowered.kind == "norm" else None,
            ids=self._columns(lowered.ids),
            weights=self._columns(lowered.weights),
            group=lowered.group,
            weight_step=lowered.weight_step,
            rotary_dim=lowered.rotary_dim,
            rotary_style=ROTARY_STYLES.index(lowered.rope_style),
            alpha=lowered.alpha,
            factor=lowered.factor,
            index=lowered.index,
            is_final=lowered.is_final,
            num_heads=lowered.num_heads,
            x_stride=lowered.x_stride,
            out_stride=lowered.out_stride,
            value=self._columns(lowered.value),
            decay=self._columns(lowered.decay),
            beta=self._columns(lowered.beta),
        )
        if lowered.is_adapted:
            op.adapters = self._weights.adapters[lowered.matrix or ""].struct
        if lowered.matrix is not None:
            op.matrix = self._weights.matrices[lowered.matrix].struct
        if lowered.kind == "head_linear":
            op.matrix.n = self._plan.parameters[lowered.matrix or ""].shape[1]  # of one head
        if lowered.order is not None:
            op.order = self._weights.matrices[lowered.order].struct.order
        if lowered.table is not None:
            self._set_table(op, lowered.table)
        if lowered.rope_table is not None:
            cosines, sines = self._ropes[lowered.rope_table]
            op.cosines, op.sines = cosines.data_ptr(), sines.data_ptr()
            sections = self._plan.rope_tables[lowered.rope_table].rotary.sections
            op.sections, op.num_sections = self._own(sections), len(sections)
        if lowered.attend is not None:
            options = attention_options(lowered.attend, self._weights.vectors)
            self._options.append(options)
            op.attention = attention_struct(lowered.index, lowered.attend.num_heads, options)
        if lowered.route is not None:
            op.router = router_struct(lowered.route.router)
            op.bias = self._vector(lowered.route.bias)
        if lowered.experts is not None:
            op.experts = self._expert_product(lowered.experts)
        match lowered.recurrence:
            case Convolve() as convolve:
                taps = self._weights.vectors[convolve.weight].T.contiguous()
                self._taps.append(taps)
                start = self._state_starts[lowered.index]
                bias = self._vector(convolve.bias)
                op.convolution = convolution_struct(convolve, taps, bias, start)
            case DeltaRule() | StateSpace() as recurrence:
                start = self._state_starts[lowered.index]
                op.recurrence = recurrence_struct(recurrence, self._weights.vectors, start)
        if lowered.kind == "restrict_rows":
            op.live = self._own([self._indices[name] for name in lowered.live])
            op.num_live = len(lowered.live)
        return op

    def _own(self, numbers: Sequence[int]) -> int:
        """The address of the numbers as int32."""
        self._owned.append(np.array(numbers, dtype=np.int32))
        address: int = self._owned[-1].ctypes.data
        return address

    def _expert_product(self, op: Experts) -> ExpertProduct:
        """The product without a step's rows, outputs and scratch."""
        gate_up, down = (self._weights.experts[name].structs for name in (op.gate_up, op.down))
        return ExpertProduct(
            top_k=op.ids.size,
            num_experts=op.num_experts,
            gate_up=ctypes.addressof(gate_up),
            down=ctypes.addressof(down),
            activation=gated_activation(
                op.activation, op.alpha, math.inf if op.limit is None else op.limit
            ),
        )

    def _columns(self, part: Slice | None) -> abi.Columns:
        if part is None:
            return abi.Columns(-1, 0, 0)
        return abi.Columns(self._indices[part.buffer], part.start, part.size)

    def _set_table(self, op: abi.Op, name: str) -> None:
        """Rows of the table, or of the LM head that is packed from it."""
        if name in self._weights.tables:
            op.table = abi.table_struct(self._weights.tables[name])
            return
        matrix = self._weights.matrices[name]
        if not matrix.has_rows:
            raise ValueError("embeddings cannot be read from an int8 lm_head: it is rounded")
        op.matrix = matrix.struct

    def _vector(self, name: str | None) -> int | None:
        return None if name is None else self._weights.vectors[name].data_ptr()
