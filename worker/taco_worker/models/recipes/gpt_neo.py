"""GPT-Neo: GPT-2 with windows in some layers, and scores that are not scaled."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import DecoderSpec, Head, LayerNorms, Sizes, decoder
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

_LAYER = "h.{layer}"
_ATTENTION = f"{_LAYER}.attn.attention"
# Files of the bare model lack the prefix; causal masks are stored as buffers.
_NAMES = TensorNames((("transformer.", ""),), (r"\.attn\.attention\.(masked_)?bias$",))
_DEFAULT_TYPES = [[["global", "local"], 12]]


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_heads")
    num_layers, length = fields.size("num_layers"), fields.size("max_position_embeddings")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    size = fields.optional_size("intermediate_size") or 4 * hidden_size
    up, down = Module(f"{_LAYER}.mlp.c_fc", size), Module(f"{_LAYER}.mlp.c_proj", hidden_size)
    spec = DecoderSpec(
        sizes=Sizes(fields.size("vocab_size"), hidden_size, num_layers, length),
        attention=AttentionSpec(
            heads,
            heads.separate(*(f"{_ATTENTION}.{name}_proj" for name in "qkv")),
            Module(f"{_ATTENTION}.out_proj", hidden_size),
            1.0,
            out_bias=True,
        ),
        mlp=plain_mlp(up, down, fields.activation("activation_function", default="gelu_new")),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        norms=LayerNorms(attn_in=f"{_LAYER}.ln_1", mlp_in=f"{_LAYER}.ln_2"),
        windows=_windows(fields, num_layers),
        head=Head(tied=fields.flag("tie_word_embeddings", default=True)),
        embedding="wte",
        positions=("wpe", length),
        final_norm="ln_f",
        names=_NAMES,
    )
    return decoder(architecture, spec)


def _windows(fields: ConfigFields, num_layers: int) -> Sequence[int | None]:
    """`attention_types` has lists of types with their numbers of repetitions."""
    types = fields.get("attention_types", default=_DEFAULT_TYPES)
    kinds = [kind for kinds, count in types for kind in list(kinds) * count]
    if len(kinds) != num_layers or not {*kinds} <= {"global", "local"}:
        raise ValueError(f"attention_types must name {num_layers} layers, not {types!r:.100}")
    fields.only("attention_layers", kinds)
    window = fields.size("window_size", default=256)
    return [window if kind == "local" else None for kind in kinds]
