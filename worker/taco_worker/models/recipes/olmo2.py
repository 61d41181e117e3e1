"""OLMo 2: norms of blocks' outputs, and of whole queries and keys."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import HeadNorm
from taco_worker.models.plan.decoder_block import (
    ATTENTION,
    LAYER,
    DecoderSpec,
    LayerNorms,
    decoder,
)
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan

_NORMS = LayerNorms(
    attn_in=None,
    attn_out=f"{LAYER}.post_attention_layernorm",
    mlp_in=None,
    mlp_out=f"{LAYER}.post_feedforward_layernorm",
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, olmo2(fields, llama_spec(fields, eps=1e-5)))


def olmo2(fields: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    """The spec with OLMo 2's norms and biases."""
    bias = fields.flag("attention_bias", default=False)
    norm = HeadNorm(f"{ATTENTION}.q_norm", f"{ATTENTION}.k_norm", spec.norm, is_per_head=False)
    attention = replace(spec.attention, head_norm=norm, qkv_bias=bias, out_bias=bias)
    return replace(spec, attention=attention, norms=_NORMS)
