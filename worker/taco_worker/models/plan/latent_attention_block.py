"""Multi-head latent attention (MLA; DeepSeek-AI 2024, "DeepSeek-V2", section 2.1), absorbed.

The cache holds one latent vector and one rotated key per token, which all heads share. The products
that would make each head's keys and values of the latent vector are applied to its query and to its
output instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from taco_kernels.kv_entry import KVEntry
from taco_worker.models.plan.builder import BLOCK_OUT, Module, PlanBuilder, rms
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.linear import HeadCopy, HeadLinear, head_columns
from taco_worker.models.plan.ops.rope import Rope, RopeStyle
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import HeadMatrices

# The published code gives these norms no epsilon of the config.
_NORM = rms(1e-6)


@dataclass(frozen=True, slots=True)
class LatentAttentionSpec:
    """Options of one layer.

    Attributes:
        prefix: of the modules' names.
        query_rank: size of the latent query; None: queries are one product.
        latent_size: size of the latent vector of keys and values (kv_lora_rank).
        nope_dim, rope_dim: numbers of a query head without and with rotary positions.
        value_dim: numbers of a head's value.
        scale: factor on query-key products.
        table: name of the rope table; None: there are no rotary positions (Kimi Linear).
        bias: the products that make latent vectors, and that of the output, have biases.
    """

    prefix: str
    num_heads: int
    query_rank: int | None
    latent_size: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    table: str | None
    style: RopeStyle
    bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def entry(self) -> KVEntry:
        return KVEntry(1, self.latent_size + self.rope_dim, self.latent_size, latent=True)


def latent_attention(b: PlanBuilder, x: Slice, spec: LatentAttentionSpec) -> Slice:
    """Attention of `x`, projected to the width of the stream."""
    heads, latent, prefix = spec.num_heads, spec.latent_size, spec.prefix
    entry = spec.entry
    query = _query(b, x, spec)
    key = b.linear(
        x,
        "attn.kv_a_proj",
        [Module(f"{prefix}.kv_a_proj_with_mqa", entry.key_dim)],
        bias=spec.bias,
        out=b.buffer("latent", entry.key_dim),
    )
    normed = key.columns(0, latent)
    b.norm(normed, "attn.kv_a_norm", f"{prefix}.kv_a_layernorm", _NORM, out=normed)
    rope_dim = spec.rope_dim
    if spec.table is not None:
        b.add(Rope(key.columns(latent, rope_dim), rope_dim, rope_dim, spec.table, 0, spec.style))
    attended = b.buffer("attended_latent", heads * latent)
    index = b.write_kv(entry, key, None)
    b.add(Attend(query, attended, index, heads, spec.scale))
    dim = spec.value_dim
    values = b.buffer("attended", heads * dim)
    weight = _head_weight(b, spec, "attn.value_up", (dim, latent), spec.nope_dim, transposed=False)
    b.add(HeadLinear(attended, values, weight, heads, latent, dim, latent, dim))
    out = b.buffer(BLOCK_OUT, b.stream.size)
    parts = [Module(f"{prefix}.o_proj", b.stream.size)]
    return b.linear(values, "attn.out_proj", parts, bias=spec.bias, out=out, shard_unit=dim)


def _query(b: PlanBuilder, x: Slice, spec: LatentAttentionSpec) -> Slice:
    """Queries for the latent keys: per head the absorbed part, then the rotated part."""
    heads, dim, prefix = spec.num_heads, spec.head_dim, spec.prefix
    module = f"{prefix}.q_proj"
    if spec.query_rank is not None:
        narrow = b.linear(
            x,
            "attn.q_a_proj",
            [Module(f"{prefix}.q_a_proj", spec.query_rank)],
            bias=spec.bias,
            out=b.buffer("query_a", spec.query_rank),
        )
        out = b.buffer("query_a_normed", spec.query_rank)
        x = b.norm(narrow, "attn.q_a_norm", f"{prefix}.q_a_layernorm", _NORM, out=out)
        module = f"{prefix}.q_b_proj"
    plain = b.buffer("query_heads", heads * dim)
    b.linear(x, "attn.q_proj", [Module(module, plain.size)], out=plain)
    if spec.table is not None:
        b.add(Rope(plain, dim, spec.rope_dim, spec.table, spec.nope_dim, spec.style))
    width, latent = spec.entry.key_dim, spec.latent_size
    query = b.buffer("query", heads * width)
    shape = (latent, spec.nope_dim)
    weight = _head_weight(b, spec, "attn.key_up", shape, 0, transposed=True)
    nope = head_columns(plain, heads, dim, 0, spec.nope_dim)
    absorbed = head_columns(query, heads, width, 0, latent)
    b.add(HeadLinear(nope, absorbed, weight, heads, spec.nope_dim, latent, dim, width))
    rotated = head_columns(plain, heads, dim, spec.nope_dim, spec.rope_dim)
    out = head_columns(query, heads, width, latent, spec.rope_dim)
    b.add(HeadCopy(rotated, out, heads, spec.rope_dim, dim, width))
    return query


def _head_weight(
    b: PlanBuilder,
    spec: LatentAttentionSpec,
    name: str,
    shape: tuple[int, int],
    start: int,
    *,
    transposed: bool,
) -> str:
    """A matrix per head, of the rows of kv_b_proj from `start` on of each head."""
    count = shape[1] if transposed else shape[0]
    view = HeadMatrices(spec.nope_dim + spec.value_dim, start, count, transposed)
    source = Source(f"{spec.prefix}.kv_b_proj.weight", 0, spec.num_heads, (view,))
    return b.parameter(f"{name}.weight", (spec.num_heads, *shape), [source])
