"""LFM2: gated short convolutions in most layers, attention in the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import rms
from taco_worker.models.plan.decoder_block import (
    LAYER,
    DecoderSpec,
    Head,
    LayerNorms,
    Mixer,
    decoder,
)
from taco_worker.models.plan.hybrid_layers import listed_layers, recurrent_layers
from taco_worker.models.plan.llama_block import (
    head_norms,
    llama_attention,
    llama_spec,
    read_heads,
)
from taco_worker.models.plan.mlp_block import gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.short_conv_block import ShortConvSpec, short_convolution

FEED_FORWARD = f"{LAYER}.feed_forward"
NAMES = ("w1", "w3", "w2")
_CONV = f"{LAYER}.conv"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, spec_with_mlp(fields, _mlp_size(fields)))


def spec_with_mlp(fields: ConfigFields, mlp_size: int) -> DecoderSpec:
    fields.needs("num_key_value_heads")
    fields.only("block_use_swiglu", True)
    fields.only("use_pos_enc", True)
    for name in ("conv_dim", "conv_dim_out"):
        fields.only(name, fields.size("hidden_size"))
    norm = rms(fields.epsilon("norm_eps", default=1e-5))
    attention = llama_attention(fields, read_heads(fields), out="out_proj")
    return llama_spec(
        fields,
        default_theta=1e6,
        mlp=gated_mlp(FEED_FORWARD, mlp_size, fields.size("hidden_size"), names=NAMES),
        attention=replace(attention, head_norm=head_norms(norm, "q_layernorm", "k_layernorm")),
        mixers=_mixers(fields),
        norm=norm,
        norms=LayerNorms(attn_in=f"{LAYER}.operator_norm", mlp_in=f"{LAYER}.ffn_norm"),
        final_norm="model.embedding_norm",
        head=Head(tied=fields.flag("tie_embedding", "tie_word_embeddings", default=True)),
    )


def _mlp_size(fields: ConfigFields) -> int:
    size = fields.size("block_ff_dim", "intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(fields.positive("block_ffn_dim_multiplier", default=1.0) * int(2 * size / 3))
    multiple = fields.size("block_multiple_of", default=256)
    return multiple * -(-size // multiple)


def _mixers(fields: ConfigFields) -> Sequence[Mixer | None]:
    is_recurrent = recurrent_layers(fields, ("conv",))
    if is_recurrent is None:
        has_attention = listed_layers(fields, "full_attn_idxs")
        has_attention = has_attention or [True] * fields.size("num_hidden_layers")
        is_recurrent = [not one for one in has_attention]
    width = fields.size("conv_L_cache", default=3)
    bias = fields.flag("conv_bias", default=False)
    spec = ShortConvSpec(f"{_CONV}.in_proj", f"{_CONV}.conv", f"{_CONV}.out_proj", width, bias)
    return [partial(short_convolution, spec=spec) if one else None for one in is_recurrent]
