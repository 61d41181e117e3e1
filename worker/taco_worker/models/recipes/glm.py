"""GLM 4 9B: Llama with interleaved rotation of half a head."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import DecoderSpec, decoder
from taco_worker.models.plan.llama_block import fused_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    return decoder(architecture, glm_spec(fields))


def glm_spec(fields: ConfigFields) -> DecoderSpec:
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("attention_bias", default=True),
        eps=1.5625e-7,
        default_head_dim=128,
        default_partial=0.5,
        mlp=fused_mlp(fields),
    )
    assert spec.rotary is not None
    return replace(spec, rotary=replace(spec.rotary, style="interleaved"))
