"""The declaration of a model: its parameters, its KV cache, and the ops of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

from taco_kernels.kv_entry import KVEntry, elements_per_token
from taco_worker.models.plan.ops.attend import Attend, WriteKV
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.input import Input
from taco_worker.models.plan.ops.linear import HeadCopy, HeadLinear
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.ops.recurrence import (
    Convolve,
    DeltaRule,
    Recurrence,
    StateEntry,
    StateSpace,
)
from taco_worker.models.plan.ops.rope import Rope
from taco_worker.models.plan.parameters import Parameter
from taco_worker.models.plan.slices import Slice
from taco_worker.models.rope import PositionGrowth, RotaryConfig


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of all positions, for heads that rotate `rotary_dim` columns.

    Attributes:
        growth: a factor on both for each position; of tables of queries.
    """

    rotary: RotaryConfig
    rotary_dim: int
    growth: PositionGrowth | None = None


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How a checkpoint's tensor names differ from those of the sources.

    Attributes:
        renamed_prefixes: pairs of a stored prefix and its replacement; the first that fits is used.
        ignored: regular expressions of tensors that are not needed, such as buffers.
        removed: parts of stored names that the sources lack, such as PEFT's ".base_layer".
    """

    renamed_prefixes: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def canonical(self, name: str) -> str | None:
        """The source's name for a stored name; None: the tensor is not needed."""
        if any(re.search(pattern, name) for pattern in self.ignored):
            return None
        for part in self.removed:
            name = name.replace(part, "")
        for prefix, replacement in self.renamed_prefixes:
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
        return name


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """Everything that a back end needs to run a model, free of torch.

    Ops run in the order embedding, layers, final for all tokens of a step; logits ops run for the
    rows whose logits are wanted.

    Attributes:
        architecture: the class name of config.json.
        max_position_embeddings: longest sequence in tokens, rope scaling included.
        buffers: columns of each buffer. Buffers that end with "_ids" hold int32.
        stream: the residual stream: the output of a layer, and of the final ops.
        logits_out: vocab_size columns; None: the plan has no logits.
        embedding_table: parameter of the token embeddings, if the plan embeds tokens.
        tied_module: module of the LM head whose weight the token embeddings are; None: not tied.
    """

    architecture: str
    vocab_size: int
    max_position_embeddings: int
    parameters: Mapping[str, Parameter]
    buffers: Mapping[str, int]
    kv_entries: tuple[KVEntry, ...]
    rope_tables: Mapping[str, RopeTable]
    embedding: tuple[Op, ...]
    layers: tuple[tuple[Op, ...], ...]
    final: tuple[Op, ...]
    logits: tuple[Op, ...]
    stream: Slice
    hidden: Slice
    logits_out: Slice | None
    embedding_table: str
    tied_module: str | None
    names: TensorNames

    def __post_init__(self) -> None:
        _check(self)

    @property
    def hidden_size(self) -> int:
        return self.hidden.size

    @property
    def embedding_size(self) -> int:
        return self.parameters[self.embedding_table].shape[1]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def ops(self) -> Iterator[Op]:
        """All ops of a step, in order, without those of the logits."""
        return chain(self.embedding, *self.layers, self.final)

    @property
    def windows(self) -> frozenset[int]:
        """Sizes in tokens of the windows of its layers."""
        windows = {op.window for op in self.ops if isinstance(op, Attend)}
        return frozenset(window for window in windows if window is not None)

    @property
    def states(self) -> tuple[StateEntry, ...]:
        """The states that a sequence has, one for each op that keeps one."""
        return tuple(op.state for op in self.ops if isinstance(op, Recurrence))

    @property
    def has_rope(self) -> bool:
        return bool(self.rope_tables)

    @property
    def num_rope_axes(self) -> int:
        """Axes of the positions that M-RoPE turns heads by; 0: no table has sections."""
        return max((len(table.rotary.sections) for table in self.rope_tables.values()), default=0)

    @property
    def num_elements(self) -> int:
        """Number of elements of all parameters."""
        return sum(prod(parameter.shape) for parameter in self.parameters.values())

    @property
    def kv_elements_per_token(self) -> int:
        return elements_per_token(self.kv_entries)

    @property
    def has_tied_head(self) -> bool:
        """Whether the logits use the token embeddings."""
        return self.tied_module is not None


def _check(plan: ModelPlan) -> None:
    """Raises ValueError for a plan that no back end could run: a recipe's error."""
    written: set[str] = set()
    for op in plan.ops:
        _check_op(plan, op, written)
    _check_read(plan, plan.hidden, written)
    written = {plan.hidden.buffer}
    for op in plan.logits:
        _check_op(plan, op, written)
    if plan.logits_out is not None:
        _check_read(plan, plan.logits_out, written)
    entries = [op.entry for op in plan.ops if isinstance(op, Recurrence)]
    if entries != list(range(len(entries))):
        raise ValueError(f"the states of a plan are {entries}, and must be numbered in order")
    if sum(isinstance(op, Input) for op in plan.ops) > 1:
        raise ValueError("a plan has one op Input at most")
    used = {name for op in chain(plan.ops, plan.logits) for name in op.parameters}
    if unused := plan.parameters.keys() - used:
        raise ValueError(f"no op uses {', '.join(sorted(unused))}")


def _check_op(plan: ModelPlan, op: Op, written: set[str]) -> None:
    for part in op.reads:
        _check_read(plan, part, written)
    for part in op.writes:
        _check_inside(plan, part)
        written.add(part.buffer)
    for name, shape in op.parameters.items():
        if name not in plan.parameters:
            raise ValueError(f"{op} uses an unknown parameter {name}")
        if plan.parameters[name].shape != shape:
            raise ValueError(f"{name} is {plan.parameters[name].shape}, and {op} needs {shape}")
    match op:
        case Embed(index="tokens") if op.table != plan.embedding_table:
            raise ValueError(f"{op} reads another table than {plan.embedding_table}")
        case Rope():
            table = plan.rope_tables[op.table]
            end = op.offset + op.rotary_dim
            if table.rotary_dim != op.rotary_dim or end > op.head_dim or op.x.size % op.head_dim:
                raise ValueError(f"{op} does not fit {table}")
        case HeadLinear() | HeadCopy():
            sizes = (op.size, op.size) if isinstance(op, HeadCopy) else (op.in_size, op.out_size)
            last = op.num_heads - 1
            ends = last * op.x_stride + sizes[0], last * op.out_stride + sizes[1]
            if ends[0] > op.x.size or ends[1] > op.out.size:
                raise ValueError(f"the heads of {op} do not fit its columns")
        case Convolve():
            if op.out.size != op.x.size or op.width < 2:
                raise ValueError(f"the columns or the width of {op} do not fit")
        case DeltaRule() | StateSpace():
            _check_recurrence(op)
        case WriteKV():
            entry = plan.kv_entries[op.entry]
            values = 0 if op.value is None else op.value.size
            sizes = entry.key_dim, 0 if entry.latent else entry.value_dim
            if (op.key.size, values) != (entry.num_heads * sizes[0], entry.num_heads * sizes[1]):
                raise ValueError(f"{op} does not fit {entry}")
        case Attend():
            entry = plan.kv_entries[op.entry]
            sizes = op.num_heads * entry.key_dim, op.num_heads * entry.value_dim
            if (op.query.size, op.out.size) != sizes or op.num_heads % entry.num_heads:
                raise ValueError(f"{op} does not fit {entry}")


def _check_recurrence(op: DeltaRule | StateSpace) -> None:
    keys, values = op.num_key_heads * op.key_dim, op.num_heads * op.value_dim
    sizes = op.query.size, op.key.size, op.value.size, op.out.size
    logits: tuple[Slice, ...] = (op.step,) if isinstance(op, StateSpace) else (op.beta,)
    wanted = {op.num_heads}
    if isinstance(op, DeltaRule) and op.decay.size != op.num_heads * op.key_dim:
        logits = (*logits, op.decay)
    if (
        sizes != (keys, keys, values, values)
        or {one.size for one in logits} != wanted
        or op.num_heads % op.num_key_heads
    ):
        raise ValueError(f"the heads of {op} do not fit its columns")


def _check_read(plan: ModelPlan, part: Slice, written: set[str]) -> None:
    _check_inside(plan, part)
    if part.buffer not in written:
        raise ValueError(f"{part} is read before it is written")


def _check_inside(plan: ModelPlan, part: Slice) -> None:
    if part.start + part.size > plan.buffers[part.buffer]:
        raise ValueError(f"{part} is not inside its buffer of {plan.buffers[part.buffer]} columns")
