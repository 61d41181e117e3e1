"""Decoders whose layers have the same blocks: the layers' norms, sums and positions as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from taco_kernels.attention_options import BlockSparse
from taco_worker.models.plan.attention_block import AttentionSpec, RopeSpec, attention
from taco_worker.models.plan.builder import NormSpec, PlanBuilder
from taco_worker.models.plan.mlp_block import MlpSpec, MoeSpec, mlp, moe
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.rope import RopeStyle
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import View
from taco_worker.models.rope import PositionGrowth, RotaryConfig

LAYER = "model.layers.{layer}"
ATTENTION = f"{LAYER}.self_attn"
MLP = f"{LAYER}.mlp"
# Also of the text part of models for text and images. Old files hold buffers that are not weights.
LLAMA_NAMES = TensorNames(
    renamed_prefixes=(
        ("language_model.model.", "model."),
        ("language_model.", ""),
        ("model.language_model.", "model."),
        ("model.text_model.", "model."),
    ),
    ignored=(
        r"\.rotary_emb\.inv_freq$",
        r"^(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector|mlp1)\.",
        r"^(model\.)?image_newline$",
    ),
)
QUERY_TABLE = "query_rope"
# A block in the place of attention: from its normed input to its output, as wide as the stream.
Mixer = Callable[[PlanBuilder, Slice], Slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """The norms of a layer: modules by place; None: there is no norm.

    Attributes:
        attn_in, mlp_in: of the stream, before a block.
        attn_out, mlp_out: of a block's output, before it is added to the stream.
        sums: "serial": the MLP reads the stream after attention was added; "parallel": both read
            the stream as it was before (without `mlp_in` the MLP has attention's input);
            "normed": as serial, but a block's output is added to its normed input.
    """

    attn_in: str | None = f"{LAYER}.input_layernorm"
    attn_out: str | None = None
    mlp_in: str | None = f"{LAYER}.post_attention_layernorm"
    mlp_out: str | None = None
    sums: Literal["serial", "parallel", "normed"] = "serial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """Rotary positions of all layers.

    Attributes:
        settings: by name of a table.
        tables: of each layer, a name in `settings`, or None: no rotary positions; by default all
            layers have the only one.
        growth: of the queries with the position.
    """

    settings: Mapping[str, RotaryConfig]
    tables: Sequence[str | None] | None = None
    style: RopeStyle = "half"
    growth: PositionGrowth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The LM head: logits are cap(scale * (W x + b)).

    Attributes:
        views: applied to the stored W, if it is not tied.
    """

    tied: bool
    module: str = "lm_head"
    bias: bool = False
    scale: float = 1.0
    cap: float | None = None
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Sizes:
    """`max_position_embeddings`: the longest sequence in tokens, rope scaling included."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder. Modules of layers contain `{layer}`.

    Attributes:
        attention: of each layer, without rope and window.
        attention_by_layer: instead of `attention`, where layers differ; with its head_dim.
        mixers: per layer, a block instead of attention, such as a recurrence, or None.
        mlp: of layers without a mixture of experts.
        mixtures: per layer, a mixture of experts instead of `mlp`, or None.
        norm: of all norms of the stream.
        windows: per layer, the number of tokens that a token sees; None: all.
        block_sparse: per layer, the pattern of visible blocks; None: all.
        embedding_views: applied to the stored table of the embeddings.
        embedding_norm: module of a norm of the embeddings.
        embedding_scale, residual_scale: factors on embeddings and on the output of each block.
        positions: module and rows of learned positions.
        stored_layers: the number of each layer in the checkpoint; None: 0, 1, and so on.
    """

    sizes: Sizes
    attention: AttentionSpec
    mlp: MlpSpec
    norm: NormSpec
    head: Head
    norms: LayerNorms = field(default_factory=LayerNorms)
    rotary: Rotary | None = None
    attention_by_layer: Sequence[AttentionSpec] | None = None
    mixers: Sequence[Mixer | None] | None = None
    windows: Sequence[int | None] | None = None
    block_sparse: Sequence[BlockSparse | None] | None = None
    mixtures: Sequence[MoeSpec | None] | None = None
    embedding: str = "model.embed_tokens"
    embedding_views: tuple[View, ...] = ()
    embedding_norm: str | None = None
    embedding_scale: float = 1.0
    positions: tuple[str, int] | None = None
    residual_scale: float = 1.0
    final_norm: str = "model.norm"
    stored_layers: Sequence[int] | None = None
    names: TensorNames = LLAMA_NAMES


def decoder(architecture: str, spec: DecoderSpec) -> ModelPlan:
    """The plan of a decoder.

    Raises:
        ValueError: rotary settings do not fit to the size of a head.
    """
    b = PlanBuilder(vocab_size=spec.sizes.vocab_size, hidden_size=spec.sizes.hidden_size)
    ropes = _ropes(b, spec)
    b.embed(spec.embedding, scale=spec.embedding_scale, views=spec.embedding_views)
    if spec.positions is not None:
        b.embed_positions(*spec.positions)
    if spec.embedding_norm is not None:
        b.norm(b.stream, "embedding_norm", spec.embedding_norm, spec.norm, out=b.stream)
    for index in range(spec.sizes.num_layers):
        window = None if spec.windows is None else spec.windows[index]
        sparse = None if spec.block_sparse is None else spec.block_sparse[index]
        of_layer = (
            spec.attention if spec.attention_by_layer is None else spec.attention_by_layer[index]
        )
        options = replace(of_layer, rope=ropes[index], window=window, block_sparse=sparse)
        mixture = None if spec.mixtures is None else spec.mixtures[index]
        mixer = None if spec.mixers is None else spec.mixers[index]
        with b.layer(None if spec.stored_layers is None else spec.stored_layers[index]):
            _layer(b, spec, mixer or partial(attention, spec=options), mixture)
    b.final_norm(spec.final_norm, spec.norm)
    head = spec.head
    b.head(
        head.module,
        tied=head.tied,
        views=head.views,
        bias=head.bias,
        scale=head.scale,
        cap=head.cap,
    )
    return b.build(architecture, spec.sizes.max_position_embeddings, spec.names)


def _layer(b: PlanBuilder, spec: DecoderSpec, mixer: Mixer, mixture: MoeSpec | None) -> None:
    norms = spec.norms

    def normed(name: str, module: str | None, x: Slice, out: Slice | None = None) -> Slice:
        return x if module is None else b.norm(x, name, module, spec.norm, out=out)

    def add(name: str, module: str | None, block: Callable[[Slice], Slice], x: Slice) -> None:
        y = block(x)
        b.residual(normed(f"{name}_out_norm", module, y, y), scale=spec.residual_scale)

    def mix(x: Slice) -> Slice:
        return mixer(b, x)

    def feed(x: Slice) -> Slice:
        return mlp(b, x, spec.mlp) if mixture is None else moe(b, x, mixture)

    def block_input(name: str, module: str | None) -> Slice:
        return normed(name, module, b.stream, b.stream if norms.sums == "normed" else None)

    x = block_input("attn_norm", norms.attn_in)
    if norms.sums == "parallel":
        other = None if norms.mlp_in is None else b.buffer("mlp_in", spec.sizes.hidden_size)
        y = x if other is None else normed("mlp_norm", norms.mlp_in, b.stream, other)
        add("attn", norms.attn_out, mix, x)
    else:
        add("attn", norms.attn_out, mix, x)
        y = block_input("mlp_norm", norms.mlp_in)
    add("mlp", norms.mlp_out, feed, y)


def _ropes(b: PlanBuilder, spec: DecoderSpec) -> Sequence[RopeSpec | None]:
    rotary = spec.rotary
    if rotary is None:
        return [None] * spec.sizes.num_layers
    head_dim = spec.attention.heads.head_dim
    tables = rotary.tables or list(rotary.settings) * spec.sizes.num_layers
    ropes: dict[str, RopeSpec] = {}
    for name in dict.fromkeys(table for table in tables if table is not None):
        settings = rotary.settings[name]
        size = settings.rotary_dim(head_dim)
        query_table = None
        if rotary.growth is not None:
            if size != head_dim:
                raise ValueError("queries that grow with the position need a whole rotated head")
            query_table = b.rope_table(QUERY_TABLE, settings, size, growth=rotary.growth)
        table = b.rope_table(name, settings, size)
        ropes[name] = RopeSpec(table, size, rotary.style, query_table)
    return [None if table is None else ropes[table] for table in tables]
