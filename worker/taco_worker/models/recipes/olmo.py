"""OLMo 1: Llama with LayerNorm without weights, and optionally limited queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import NormSpec
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan

_NORM = NormSpec("layer", 1e-5, has_weight=False)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("mlp_bias", False)
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(fields, qkv_bias=bias, out_bias=bias, norm=_NORM)
    attention = replace(spec.attention, clip=fields.optional_positive("clip_qkv"))
    return decoder(architecture, replace(spec, attention=attention))
