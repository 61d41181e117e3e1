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


def glm_spec(
    fields: ConfigFields,
    *,
    eps: float = 1.5625e-7,
    default_head_dim: int | None = 128,
    default_partial: float = 0.5,
) -> DecoderSpec:
    """The arguments are what configs without a field mean, as of `llama_spec`."""
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("attention_bias", default=True),
        eps=eps,
        default_head_dim=default_head_dim,
        default_partial=default_partial,
        mlp=fused_mlp(fields),
    )
    assert spec.rotary is not None
    return replace(spec, rotary=replace(spec.rotary, style="interleaved"))
