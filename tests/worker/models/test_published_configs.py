"""Fields of published config.json files, and what the plan says of the model."""

from __future__ import annotations

from typing import Any

import pytest

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.registry import find_recipe

GEMMA_3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GEMMA_3_12B = GEMMA_3_4B | {
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
}
COMMAND_R = {
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "model_max_length": 131072,
    "model_type": "cohere",
    "num_attention_heads": 64,
    "num_hidden_layers": 40,
    "num_key_value_heads": 64,
    "rope_theta": 8000000.0,
    "use_cache": True,
    "vocab_size": 256000,
}
FALCON_7B = {
    "alibi": False,
    "bias": False,
    "hidden_size": 4544,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "parallel_attn": True,
    "vocab_size": 65024,
}


def plan_of(architecture: str, fields: dict[str, Any]) -> ModelPlan:
    return find_recipe([architecture])[1](ConfigFields(fields), architecture)


@pytest.mark.parametrize(("fields", "billions"), [(GEMMA_3_4B, 3.88), (GEMMA_3_12B, 11.77)])
def test_gemma_3_lists_only_what_differs_from_its_class(
    fields: dict[str, Any], billions: float
) -> None:
    plan = plan_of("Gemma3ForCausalLM", fields)
    assert round(plan.num_elements / 1e9, 2) == billions
    assert (plan.vocab_size, plan.max_position_embeddings) == (262_208, 131_072)
    assert plan == plan_of("Gemma3ForCausalLM", {**fields, "vocab_size": None})


def test_command_r_is_as_long_as_its_model_max_length() -> None:
    assert plan_of("CohereForCausalLM", COMMAND_R).max_position_embeddings == 131_072
    fields = {k: v for k, v in COMMAND_R.items() if k != "model_max_length"}
    assert plan_of("CohereForCausalLM", fields).max_position_embeddings == 8192


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 2048),
        ({"rope_type": "linear", "factor": 2.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"rope_type": "dynamic", "factor": 2.0}, 4096),
    ],
)
def test_falcon_is_as_long_as_its_scaled_positions(
    scaling: dict[str, Any] | None, length: int
) -> None:
    """The published config has no length."""
    fields = {**FALCON_7B, "rope_scaling": scaling}
    assert plan_of("FalconForCausalLM", fields).max_position_embeddings == length


def test_falcon_with_residuals_after_its_norms_is_rejected() -> None:
    fields = {**FALCON_7B, "apply_residual_connection_post_layernorm": True}
    with pytest.raises(ValueError, match="apply_residual_connection_post_layernorm True is not"):
        plan_of("RWForCausalLM", fields)
