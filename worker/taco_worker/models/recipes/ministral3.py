"""Ministral 3: Mistral with YaRN, and queries that grow with the position."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import Rotary, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.rope import PositionGrowth
from taco_worker.models.rope_parsing import parse_rotary


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    rope = fields.get("rope_parameters", "rope_scaling", default={})
    parameters = ConfigFields(rope)
    length = parameters.size(
        "original_max_position_embeddings", default=fields.size("max_position_embeddings")
    )
    beta = parameters.optional_number("llama_4_scaling_beta")
    growth = PositionGrowth(beta, length) if beta else None
    spec = llama_spec(
        fields,
        eps=1e-5,
        default_head_dim=128,
        rotary=Rotary(settings={"rope": parse_rotary(fields.values)}, growth=growth),
        windows=[fields.optional_size("sliding_window")] * fields.size("num_hidden_layers"),
    )
    return decoder(architecture, spec)
