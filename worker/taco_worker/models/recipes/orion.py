"""Orion: Llama with LayerNorms."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("attention_bias", False)
    # Its config has Llama's name for the epsilon.
    norm = layer_norm(fields.epsilon("rms_norm_eps", default=1e-5))
    return decoder(architecture, llama_spec(fields, norm=norm))
