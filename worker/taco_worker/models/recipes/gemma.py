"""Gemma: Llama with norms of 1 + weight, scaled embeddings and a gated GELU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import rms
from taco_worker.models.plan.decoder_block import LAYER, DecoderSpec, LayerNorms, decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.activation import ActivationKind
from taco_worker.models.plan.views import PlusOne

SANDWICH = LayerNorms(
    attn_out=f"{LAYER}.post_attention_layernorm",
    mlp_in=f"{LAYER}.pre_feedforward_layernorm",
    mlp_out=f"{LAYER}.post_feedforward_layernorm",
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    activation = fields.activation("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    if fields.get("hidden_activation") is None and activation == "gelu":
        activation = "gelu_tanh"  # the first configs named it so
    return decoder(architecture, gemma_spec(fields, activation))


def gemma_spec(fields: ConfigFields, activation: ActivationKind, **changes: Any) -> DecoderSpec:
    fields.only("use_bidirectional_attention", False)
    bias = fields.flag("attention_bias", default=False)
    return llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_head_dim=256,
        tied=True,
        mlp=llama_mlp(fields, activation),
        norm=rms(fields.epsilon("rms_norm_eps", default=1e-6), PlusOne()),
        embedding_scale=fields.size("hidden_size") ** 0.5,
        **changes,
    )


def with_caps(fields: ConfigFields, spec: DecoderSpec, *caps: float) -> DecoderSpec:
    """The attention scale and caps of Gemma 2 and 3.

    Args:
        caps: of attention and of logits, in configs without the fields; null is no cap.
    """
    names = "attn_logit_softcapping", "final_logit_softcapping"
    read = [
        fields.optional_positive(name) if name in fields.values else default
        for name, default in zip(names, caps or (None, None), strict=True)
    ]
    scale = fields.positive("query_pre_attn_scalar", default=256) ** -0.5
    return replace(
        spec,
        attention=replace(spec.attention, scale=scale, cap=read[0]),
        head=replace(spec.head, cap=read[1]),
        norms=SANDWICH,
    )
