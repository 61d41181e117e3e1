"""The attention block of most decoders: projections, positions, KV and attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taco_kernels.attention_options import BlockSparse
from taco_kernels.kv_entry import KVEntry
from taco_worker.models.plan.builder import BLOCK_OUT, Module, NormSpec, PlanBuilder
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.elementwise import Clip, Gate, Scale
from taco_worker.models.plan.ops.rope import Rope, RopeStyle
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import GroupedRows, View


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of query and KV heads, and columns of a head.

    Attributes:
        value_dim: columns of a value; None: `head_dim`.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly"
            )

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all keys."""
        return self.num_kv_heads * self.head_dim

    @property
    def value_head_dim(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def value_size(self) -> int:
        return self.num_kv_heads * self.value_head_dim

    def separate(self, query: str, key: str, value: str) -> list[Module]:
        """The checkpoint has one module each."""
        sizes = (self.query_size, self.kv_size, self.value_size)
        return [Module(name, size) for name, size in zip((query, key, value), sizes, strict=True)]

    def packed(self, name: str, *views: View) -> list[Module]:
        """One module holds all queries, then all keys, then all values."""
        return [Module(name, self.query_size + self.kv_size + self.value_size, views)]

    def grouped(self, name: str) -> list[Module]:
        """One module holds, for each KV head, its queries, its key and its value."""
        count, dim = self.num_kv_heads, self.head_dim
        per_group = self.num_heads // count
        value_dim = self.value_head_dim
        group_size = (per_group + 1) * dim + value_dim
        parts = ((0, per_group * dim), (per_group * dim, dim), ((per_group + 1) * dim, value_dim))
        return [
            Module(name, count * size, (GroupedRows(count, group_size, start, size),))
            for start, size in parts
        ]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions of a layer; tables are names from `PlanBuilder.rope_table`.

    Attributes:
        query_table: of the queries, if that is not the keys'.
    """

    table: str
    rotary_dim: int
    style: RopeStyle = "half"
    query_table: str | None = None


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """Norms of queries and keys.

    Attributes:
        query, key: modules.
        is_per_head: each head is normed by itself; otherwise all columns together.
        views: of the stored weights; with views each head has its own weight.
        is_after_rope: the rotation comes before the norms (HunYuan).
    """

    query: str
    key: str
    spec: NormSpec
    is_per_head: bool = True
    query_views: tuple[View, ...] = ()
    key_views: tuple[View, ...] = ()
    is_after_rope: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Options of one layer's attention; `Attend` explains those with its names.

    Attributes:
        qkv: modules that hold the queries, keys and values.
        out: module of the output projection.
        clip: limit of queries, keys and values, after their norms and before the rotation.
        sinks: stored tensor of one logit per head, or several: a checkpoint has one of them.
        gate: module whose sigmoid is a factor on each attended value, before the output projection.
        gate_bias: it has a bias.
        value_scale: factor on the values.
    """

    heads: Heads
    qkv: Sequence[Module]
    out: Module
    scale: float
    rope: RopeSpec | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: HeadNorm | None = None
    clip: float | None = None
    window: int | None = None
    cap: float | None = None
    alibi: tuple[float, ...] | None = None
    sinks: str | Sequence[str] | None = None
    log_n: int | None = None
    block_sparse: BlockSparse | None = None
    gate: str | Module | None = None
    gate_bias: bool = False
    value_scale: float = 1.0


def attention(b: PlanBuilder, x: Slice, spec: AttentionSpec) -> Slice:
    """Attention of `x`, projected to the width of the stream."""
    heads = spec.heads
    width = heads.query_size + heads.kv_size + heads.value_size
    qkv = b.linear(x, "attn.qkv_proj", spec.qkv, bias=spec.qkv_bias, out=b.buffer("qkv", width))
    query = qkv.columns(0, heads.query_size)
    key = qkv.columns(heads.query_size, heads.kv_size)
    value = qkv.columns(heads.query_size + heads.kv_size, heads.value_size)
    gate = None
    if spec.gate is not None:
        size = heads.num_heads * heads.value_head_dim
        module = spec.gate if isinstance(spec.gate, Module) else Module(spec.gate, size)
        gate = b.buffer("attn_gate", size)
        b.linear(x, "attn.gate", [module], bias=spec.gate_bias, out=gate)
    norm = spec.head_norm
    if norm is not None and not norm.is_after_rope:
        _norm_heads(b, norm, heads.head_dim, query, key)
    if spec.clip is not None:
        b.add(Clip(qkv, spec.clip))
    if spec.rope is not None:
        rope = spec.rope
        for part, table in ((query, rope.query_table or rope.table), (key, rope.table)):
            b.add(Rope(part, heads.head_dim, rope.rotary_dim, table, 0, rope.style))
    if norm is not None and norm.is_after_rope:
        _norm_heads(b, norm, heads.head_dim, query, key)
    if spec.value_scale != 1.0:
        b.add(Scale(value, spec.value_scale))
    entry = b.write_kv(
        KVEntry(heads.num_kv_heads, heads.head_dim, heads.value_head_dim), key, value
    )
    sinks = None
    if spec.sinks is not None:
        count = heads.num_heads
        names = [spec.sinks] if isinstance(spec.sinks, str) else spec.sinks
        first, *others = [[Source(name, 0, count)] for name in names]
        sinks = b.parameter("attn.sinks", (count,), first, others=others, initial=0.0)
    out = b.buffer("attended", heads.num_heads * heads.value_head_dim)
    b.add(
        Attend(
            query,
            out,
            entry,
            heads.num_heads,
            spec.scale,
            window=spec.window,
            cap=spec.cap,
            alibi=spec.alibi,
            sinks=sinks,
            log_n=spec.log_n,
            block_sparse=spec.block_sparse,
        )
    )
    if gate is not None:
        b.add(Gate(out, gate))
    return b.linear(
        out,
        "attn.out_proj",
        [spec.out],
        bias=spec.out_bias,
        out=b.buffer(BLOCK_OUT, b.stream.size),
        shard_unit=heads.value_head_dim,
    )


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi (Press et al. 2022), also where num_heads is not a power of 2."""
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return tuple(slopes + between)


def _norm_heads(b: PlanBuilder, norm: HeadNorm, head_dim: int, query: Slice, key: Slice) -> None:
    for part, name, module, views in (
        (query, "attn.q_norm", norm.query, norm.query_views),
        (key, "attn.k_norm", norm.key, norm.key_views),
    ):
        if norm.is_per_head:
            b.head_norm(part, name, module, norm.spec, head_dim, *views)
        else:
            b.norm(part, name, module, norm.spec, out=part)
