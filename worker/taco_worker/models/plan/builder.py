"""Builds a `ModelPlan` op by op: names its parameters and sizes its buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from taco_kernels.kv_entry import KVEntry
from taco_worker.models.config_fields import MAX_SIZE
from taco_worker.models.plan.model_plan import ModelPlan, RopeTable, TensorNames
from taco_worker.models.plan.ops.attend import WriteKV
from taco_worker.models.plan.ops.elementwise import Add, Cap, Scale
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.plan.ops.norm import Norm, NormKind
from taco_worker.models.plan.ops.op import Op, Shape
from taco_worker.models.plan.parameters import Parameter, Source
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import View
from taco_worker.models.rope import PositionGrowth, RotaryConfig

STREAM = "x"
NORMED = "h"
BLOCK_OUT = "y"
HIDDEN = "hidden"
HEAD = "{head}"
_EMBEDDINGS = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a checkpoint that fills some rows of a linear layer.

    Attributes:
        name: of the module; its tensors are `name`.weight and, with a bias, `name`.bias.
        size: rows that it fills.
        views: applied to its tensors.
    """

    name: str
    size: int
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class NormSpec:
    """The norms of a model.

    Attributes:
        has_bias: LayerNorm with a bias.
        views: applied to the stored weight.
    """

    kind: NormKind
    eps: float
    has_weight: bool = True
    has_bias: bool = False
    views: tuple[View, ...] = ()


def rms(eps: float, *views: View) -> NormSpec:
    return NormSpec("rms", eps, views=views)


def layer_norm(eps: float, *, bias: bool = True) -> NormSpec:
    return NormSpec("layer", eps, has_bias=bias)


class PlanBuilder:
    """Collects the ops and parameters of one plan.

    Inside `with builder.layer():` ops belong to that layer, and `{layer}` in module names is its
    number in the checkpoint.

    Attributes:
        stream: the residual stream.
    """

    def __init__(
        self, *, hidden_size: int, vocab_size: int = 0, embedding_size: int | None = None
    ) -> None:
        """`vocab_size`: 0 for plans without embeddings and logits."""
        self.vocab_size = vocab_size
        self.stream = Slice(STREAM, 0, hidden_size)
        self._embedding_size = embedding_size or hidden_size
        self._buffers = {STREAM: hidden_size}
        self._parameters: dict[str, Parameter] = {}
        self._kv_entries: list[KVEntry] = []
        self._num_states = 0
        self._rope_tables: dict[str, RopeTable] = {}
        self._embedding: list[Op] = []
        self._layers: list[tuple[Op, ...]] = []
        self._final: list[Op] = []
        self._logits: list[Op] = []
        self._ops = self._embedding
        self._prefix = ""
        self._stored_layer = 0
        self._ignored: list[str] = []
        self._tied_module: str | None = None

    @contextmanager
    def layer(self, stored: int | None = None) -> Iterator[int]:
        """A new layer; yields its number.

        Args:
            stored: its number in the checkpoint, by default the same.
        """
        index = len(self._layers)
        self._stored_layer = index if stored is None else stored
        self._ops, self._prefix = [], f"layers.{index}."
        yield index
        self._layers.append(tuple(self._ops))
        self._ops, self._prefix = self._final, ""

    def add(self, op: Op) -> None:
        self._ops.append(op)

    def buffer(self, name: str, size: int) -> Slice:
        """Columns of a buffer, which becomes as wide as its widest use."""
        self._buffers[name] = max(size, self._buffers.get(name, 0))
        return Slice(name, 0, size)

    def parameter(
        self,
        name: str,
        shape: Shape,
        sources: Sequence[Source],
        *,
        others: Sequence[Sequence[Source]] = (),
        initial: float | None = None,
    ) -> str:
        """Declare a parameter of the current layer and return its full name.

        Args:
            others: further layouts; a checkpoint has one of them.
        """
        return self._declare(name, shape, [sources, *others], None, initial)

    def experts(
        self,
        name: str,
        shape: Shape,
        layouts: Sequence[Sequence[Source]],
        *,
        initial: float | None = None,
    ) -> str:
        """Declare a parameter with an axis of experts; a checkpoint has one of the layouts."""
        return self._declare(name, shape, layouts, shape[0], initial)

    def rope_table(
        self,
        name: str,
        rotary: RotaryConfig,
        rotary_dim: int,
        *,
        growth: PositionGrowth | None = None,
    ) -> str:
        self._rope_tables[name] = RopeTable(rotary, rotary_dim, growth)
        return name

    def embed(
        self,
        module: str,
        *,
        scale: float = 1.0,
        project: str | None = None,
        views: tuple[View, ...] = (),
    ) -> None:
        """Token embeddings into the stream.

        Args:
            views: applied to the stored table.
            project: module of a projection to the width of the stream, if embeddings are narrower.
        """
        size = self._embedding_size
        out = self.stream if project is None else self.buffer("embedded", size)
        table = self._table("embed_tokens", module, self.vocab_size, size, views)
        self.add(Embed(out, table, self.vocab_size))
        if scale != 1.0:
            self.add(Scale(out, scale))
        if project is not None:
            parts = [Module(project, self.stream.size)]
            self.linear(out, "embed_in_proj", parts, out=self.stream)

    def embed_positions(self, module: str, num_rows: int, *, offset: int = 0) -> None:
        """Add learned position embeddings to the stream."""
        out = self.buffer(BLOCK_OUT, self.stream.size)
        table = self._table("embed_positions", module, num_rows, self.stream.size)
        self.add(Embed(out, table, num_rows, "positions", offset))
        self.add(Add(self.stream, out))

    def norm(
        self, x: Slice, name: str, module: str, spec: NormSpec, *, out: Slice | None = None
    ) -> Slice:
        """The norm of all columns of `x`; by default in a buffer of normed values."""
        out = out or self.buffer(NORMED, x.size)
        weight, bias = self._norm_parameters(name, module, spec, (x.size,))
        self.add(Norm(x, out, spec.kind, spec.eps, weight, bias))
        return out

    def head_norm(
        self, x: Slice, name: str, module: str, spec: NormSpec, head_dim: int, *views: View
    ) -> None:
        """Norm each head of `x` in place.

        With `views`, or `{head}` in the module's name, each head has its own weight.
        """
        shares = not views and HEAD not in module
        size = head_dim if shares else x.size
        weight, bias = self._norm_parameters(name, module, spec, (size,), views, head_dim)
        self.add(Norm(x, x, spec.kind, spec.eps, weight, bias, head_dim, shares))

    def linear(
        self,
        x: Slice,
        name: str,
        modules: Sequence[Module],
        *,
        bias: bool = False,
        out: Slice | None = None,
        shard_unit: int | None = None,
    ) -> Slice:
        """A linear layer whose outputs are those of `modules` side by side.

        Args:
            shard_unit: as of `Linear`.
        """
        size = sum(module.size for module in modules)
        out = out or self.buffer(BLOCK_OUT, size)
        sources = list(_fused(modules))
        weight = self.parameter(f"{name}.weight", (size, x.size), _suffixed(sources, "weight"))
        bias_name = None
        if bias:
            bias_name = self.parameter(
                f"{name}.bias", (size,), _suffixed(sources, "bias"), initial=0.0
            )
        self.add(Linear(x, out, weight, bias_name, shard_unit))
        return out

    def kv_entry(self, entry: KVEntry) -> int:
        self._kv_entries.append(entry)
        return len(self._kv_entries) - 1

    def state_entry(self) -> int:
        """The index of the state of the recurrence that is added next."""
        self._num_states += 1
        return self._num_states - 1

    def write_kv(self, entry: KVEntry, key: Slice, value: Slice | None) -> int:
        """Declare an entry that the current layer writes; returns its index."""
        index = self.kv_entry(entry)
        self.add(WriteKV(index, key, value))
        return index

    def residual(self, y: Slice, *, scale: float = 1.0) -> None:
        """Add the output of a block to the stream."""
        self.add(Add(self.stream, y, scale))

    def final_norm(self, module: str, spec: NormSpec) -> None:
        self._ops = self._final
        self.norm(
            self.stream, "final_norm", module, spec, out=self.buffer(HIDDEN, self.stream.size)
        )

    def head(
        self,
        module: str,
        *,
        tied: bool = False,
        views: tuple[View, ...] = (),
        bias: bool = False,
        scale: float = 1.0,
        cap: float | None = None,
        project: str | None = None,
    ) -> None:
        """The logits of the hidden states.

        Args:
            module: of the LM head.
            tied: the token embeddings are the LM head; a copy in the checkpoint is not read.
            project: module of a projection to the width of the embeddings (OPT-350m).
        """
        self._ops = self._logits
        hidden = self._hidden
        if project is not None:
            narrow = self.buffer("embedded", self._embedding_size)
            parts = [Module(project, narrow.size)]
            hidden = self.linear(hidden, "embed_out_proj", parts, out=narrow)
        logits = self.buffer("logits", self.vocab_size)
        if tied:
            self._tied_module = module
            self._ignored.append(rf"^{re.escape(module)}\.{'weight' if bias else '(weight|bias)'}$")
            bias_name = None
            if bias:
                source = Source(f"{module}.bias", 0, self.vocab_size)
                bias_name = self.parameter(
                    "lm_head.bias", (self.vocab_size,), [source], initial=0.0
                )
            self.add(Linear(hidden, logits, _EMBEDDINGS, bias_name))
        else:
            parts = [Module(module, self.vocab_size, views)]
            self.linear(hidden, "lm_head", parts, bias=bias, out=logits)
        if scale != 1.0:
            self.add(Scale(logits, scale))
        if cap is not None:
            self.add(Cap(logits, cap))

    def build(
        self, architecture: str, max_position_embeddings: int, names: TensorNames
    ) -> ModelPlan:
        if max_position_embeddings > MAX_SIZE:
            raise ValueError(
                f"max_position_embeddings is {max_position_embeddings}, and at most {MAX_SIZE} is "
                "supported"
            )
        return ModelPlan(
            architecture=architecture,
            vocab_size=self.vocab_size,
            max_position_embeddings=max_position_embeddings,
            parameters=self._parameters,
            buffers=self._buffers,
            kv_entries=tuple(self._kv_entries),
            rope_tables=self._rope_tables,
            embedding=tuple(self._embedding),
            layers=tuple(self._layers),
            final=tuple(self._final),
            logits=tuple(self._logits),
            stream=self.stream,
            hidden=self._hidden,
            logits_out=self.buffer("logits", self.vocab_size) if self._logits else None,
            embedding_table=_EMBEDDINGS,
            tied_module=self._tied_module,
            names=replace(names, ignored=(*names.ignored, *self._ignored)),
        )

    @property
    def _hidden(self) -> Slice:
        """What the final ops leave: the normed stream, or the stream."""
        return self.buffer(HIDDEN, self.stream.size) if self._final else self.stream

    def _table(
        self, name: str, module: str, num_rows: int, size: int, views: tuple[View, ...] = ()
    ) -> str:
        source = Source(f"{module}.weight", 0, num_rows, views)
        return self.parameter(f"{name}.weight", (num_rows, size), [source])

    def _norm_parameters(
        self,
        name: str,
        module: str,
        spec: NormSpec,
        shape: Shape,
        views: tuple[View, ...] = (),
        head_dim: int = 1,
    ) -> tuple[str | None, str | None]:
        def declare(kind: str, initial: float, *views: View) -> str:
            stored = f"{module}.{kind}"
            sources = [Source(stored, 0, shape[0], views)]
            if HEAD in stored:
                sources = [
                    Source(stored.replace(HEAD, str(head)), head * head_dim, head_dim, views)
                    for head in range(shape[0] // head_dim)
                ]
            return self.parameter(f"{name}.{kind}", shape, sources, initial=initial)

        weight = declare("weight", 1.0, *views, *spec.views) if spec.has_weight else None
        bias = declare("bias", 0.0, *views) if spec.has_bias else None
        return weight, bias

    def _declare(
        self,
        name: str,
        shape: Shape,
        layouts: Sequence[Sequence[Source]],
        num_experts: int | None,
        initial: float | None,
    ) -> str:
        full_name = self._prefix + name
        named = tuple(tuple(self._in_layer(source) for source in one) for one in layouts)
        self._parameters[full_name] = Parameter(full_name, shape, named, num_experts, initial)
        return full_name

    def _in_layer(self, source: Source) -> Source:
        return replace(source, name=source.name.replace("{layer}", str(self._stored_layer)))


def _fused(modules: Sequence[Module]) -> Iterator[Source]:
    start = 0
    for module in modules:
        yield Source(module.name, start, module.size, module.views)
        start += module.size


def _suffixed(sources: Sequence[Source], kind: str) -> list[Source]:
    return [Source(f"{one.name}.{kind}", one.start, one.count, one.views) for one in sources]
