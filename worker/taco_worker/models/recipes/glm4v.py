"""GLM-4.1V, the text part: GLM 4 0414 whose positions have three axes (M-RoPE)."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.glm import glm_spec
from taco_worker.models.recipes.glm4 import SANDWICH


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("attention_bias", True)
    fields.only("head_dim", fields.size("hidden_size") // fields.size("num_attention_heads"))
    spec = glm_spec(fields, eps=1e-5, default_head_dim=None, default_partial=1.0)
    return decoder(architecture, replace(spec, norms=SANDWICH))
