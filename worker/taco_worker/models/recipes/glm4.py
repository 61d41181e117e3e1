"""GLM 4 0414: GLM 4 9B with norms around blocks."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LAYER, LayerNorms, decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.glm import glm_spec

SANDWICH = LayerNorms(
    attn_out=f"{LAYER}.post_self_attn_layernorm", mlp_out=f"{LAYER}.post_mlp_layernorm"
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    return decoder(architecture, replace(glm_spec(fields), norms=SANDWICH))
