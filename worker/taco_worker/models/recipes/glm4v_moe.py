"""GLM-4.5V, the text part: GLM 4.5 whose positions have three axes (M-RoPE)."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes import glm4_moe

# Of Glm4vMoeTextConfig, which nested configs leave out.
_DEFAULTS = {
    "attention_bias": True,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("use_qk_norm", False)
    return glm4_moe.plan(ConfigFields({**_DEFAULTS, **fields.values}), architecture)
