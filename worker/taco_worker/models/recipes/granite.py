"""Granite 3: Llama with factors on embeddings, attention, blocks and logits."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import DecoderSpec, decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    mlp = llama_mlp(fields, bias=fields.flag("mlp_bias", default=False))
    spec = llama_spec(fields, qkv_bias=bias, out_bias=bias, mlp=mlp)
    return decoder(architecture, with_factors(fields, spec))


def with_factors(fields: ConfigFields, spec: DecoderSpec) -> DecoderSpec:
    """The spec with the four factors of Granite's configs."""
    scale = fields.number("attention_multiplier", default=1.0)
    return replace(
        spec,
        attention=replace(spec.attention, scale=scale),
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        head=replace(spec.head, scale=1 / fields.positive("logits_scaling", default=1.0)),
    )
