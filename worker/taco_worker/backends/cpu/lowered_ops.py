"""A model plan after lowering for the CPU kernels, free of torch.

`kernels/taco_kernels/cpu/csrc/program/program_args.h` explains the fields: a `LoweredOp` holds
names of parameters where the C++ op holds their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from taco_worker.models.plan.ops.activation import ActivationKind
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.norm import NormKind
from taco_worker.models.plan.ops.recurrence import Recurrence
from taco_worker.models.plan.ops.rope import RopeStyle
from taco_worker.models.plan.slices import Slice

# Element type of a matrix, and of the operands that it is multiplied with.
MatrixType = Literal["f32", "bf16", "i8"]


class OperandKind(NamedTuple):
    """How the operands of a product are written.

    Attributes:
        type: of its matrix.
        order: a matrix whose order of columns they have; None: they are in order.
    """

    type: MatrixType
    order: str | None = None


OpKind = Literal[
    "embed",
    "norm",
    "encode",
    "linear",
    "rope",
    "activation",
    "add",
    "scale",
    "cap",
    "clip",
    "gate",
    "copy",
    "keep",
    "write_kv",
    "attend",
    "restrict_rows",
    "route",
    "experts",
    "head_linear",
    "head_copy",
    "input",
    "xielu",
    "multiply",
    "convolve",
    "recur",
]
Epilogue = Literal["store", "add", "gate_mul"]
# These run over all rows of a step at once; the others row by row.
WHOLE_STEP: frozenset[OpKind] = frozenset(
    {"write_kv", "attend", "convolve", "recur", "restrict_rows"}
)
# These change `x`.
_IN_PLACE: frozenset[OpKind] = frozenset(
    {"rope", "add", "scale", "cap", "clip", "gate", "xielu", "multiply"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredOp:
    """One op of a program; each kind uses some of the fields."""

    kind: OpKind
    x: Slice | None = None
    y: Slice | None = None
    out: Slice | None = None
    table: str | None = None
    matrix: str | None = None
    indexes_positions: bool = False
    adds: bool = False
    offset: int = 0
    epilogue: Epilogue = "store"
    activation: ActivationKind | Literal["none"] = "none"
    is_gated: bool = False
    norm: NormKind = "rms"
    eps: float = 0.0
    weight: str | None = None
    bias: str | None = None
    group: int = 0
    weight_step: int = 0
    rope_table: str | None = None
    rotary_dim: int = 0
    rope_style: RopeStyle = "half"
    alpha: float = 0.0
    factor: float = 0.0
    index: int = 0
    attend: Attend | None = None
    route: Route | None = None
    experts: Experts | None = None
    ids: Slice | None = None
    weights: Slice | None = None
    live: tuple[str, ...] = ()
    is_final: bool = False
    num_heads: int = 0
    x_stride: int = 0
    out_stride: int = 0
    order: str | None = None
    is_adapted: bool = False
    recurrence: Recurrence | None = None
    value: Slice | None = None
    decay: Slice | None = None
    beta: Slice | None = None

    @property
    def reads(self) -> tuple[Slice, ...]:
        inputs = (self.x,) if self.kind == "head_linear" else (self.x, self.y)
        inputs = (*inputs, self.value, self.decay, self.beta)
        parts = [part for part in inputs if part is not None]
        if self.out is not None and (self.adds or self.epilogue == "add"):
            parts.append(self.out)
        return (*parts, *self._choice) if self.kind == "experts" else tuple(parts)

    @property
    def writes(self) -> tuple[Slice, ...]:
        if self.kind in _IN_PLACE:
            return () if self.x is None else (self.x,)
        if self.kind == "route":
            return self._choice
        outputs: tuple[Slice | None, ...] = (self.out,)
        if self.kind == "head_linear":
            outputs = (self.out, self.y)
        elif self.kind == "recur":  # it prepares its inputs in place
            outputs = (self.out, self.x, self.y, self.decay, self.beta)
        return tuple(part for part in outputs if part is not None)

    @property
    def _choice(self) -> tuple[Slice, ...]:
        return tuple(part for part in (self.ids, self.weights) if part is not None)


@dataclass(frozen=True, slots=True)
class LoweredBuffer:
    """A buffer of a program.

    Attributes:
        type: "f32": floats; otherwise operands of a matrix of that type.
        num_groups: operands: groups of `columns` in a row, each with its scale.
        is_local: it is written and read inside one stage, and holds a chunk of rows.
        clears_tail: kernels write its columns but not their padding.
        is_restricted: live at a `restrict_rows` op.
    """

    columns: int
    type: MatrixType
    num_groups: int
    is_local: bool
    clears_tail: bool
    is_restricted: bool


@dataclass(frozen=True, slots=True)
class LoweredStage:
    """Consecutive ops that run chunk by chunk, or one op over all rows."""

    first: int
    count: int
    by_chunks: bool


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """A program with the names of its parameters.

    Attributes:
        hidden: the buffer that a step returns.
        embed_out: matrix of the projection before the LM head, if any.
        lm_head: None: the plan has no logits.
        logit_cap: 0: no cap.
        gated: matrices that are packed as gated pairs.
        segments: number of segments of k of the matrices that have more than one.
    """

    buffers: Mapping[str, LoweredBuffer]
    ops: tuple[LoweredOp, ...]
    stages: tuple[LoweredStage, ...]
    hidden: str
    embed_out: str | None
    lm_head: str | None
    logit_scale: float
    logit_cap: float
    gated: frozenset[str]
    segments: Mapping[str, int]
