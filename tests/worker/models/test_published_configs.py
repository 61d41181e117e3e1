"""Fields of published config.json files, and what the plan says of the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.architectures.variants import VARIANTS
from taco_worker.backends.cpu.logits_head import LogitsHead
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.models.plan.ops.linear import Linear
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


@pytest.mark.parametrize("name", ["n_group", "topk_group", "n_shared_experts", "q_lora_rank"])
def test_deepseek_v3_needs_fields_whose_absence_is_another_model(name: str) -> None:
    config = VARIANTS["deepseek-v3-like"].config
    with pytest.raises(KeyError, match=name):
        plan_of("DeepseekV3ForCausalLM", {k: v for k, v in config.items() if k != name})


def test_deepseek_v3_has_three_dense_layers_by_default() -> None:
    config = {**VARIANTS["deepseek-v3-like"].config, "num_hidden_layers": 4}
    del config["first_k_dense_replace"]
    layers = plan_of("DeepseekV3ForCausalLM", config).layers
    has_experts = [any(isinstance(op, Experts) for op in ops) for ops in layers]
    assert has_experts == [False, False, False, True]


def test_mixtral_without_theta_has_its_classes() -> None:
    config = VARIANTS["mixtral-8x7b-like"].config
    rope = ("rope_theta", "rope_parameters")
    plan = plan_of("MixtralForCausalLM", {k: v for k, v in config.items() if k not in rope})
    assert plan.rope_tables["rope"].rotary.theta == 1e6


def test_ratio_of_chatglm_2_is_rejected_and_of_chatglm_3_followed() -> None:
    config = VARIANTS["chatglm3-6b-like"].config
    config = {**config, "padded_vocab_size": 65_024, "rope_ratio": 50}
    for name in ({"_name_or_path": "THUDM/chatglm2-6b-32k"}, {}):
        with pytest.raises(ValueError, match="rope_ratio 50 is not supported"):
            plan_of("ChatGLMModel", {**config, **name})
    plan = plan_of("ChatGLMModel", {**config, "_name_or_path": "THUDM/chatglm3-6b-32k"})
    assert plan.rope_tables["rope"].rotary.theta == 500_000.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_theta must"),
        ({"layer_types": ["x" * 10_000]}, "layer_types must be a list"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": 5}}, "mrope_section must be 3"),
        ({"num_attention_heads": 3840 * 2, "head_dim": None}, "num_attention_heads 7680 is more"),
    ],
)
def test_errors_are_short_and_name_the_field(fields: dict[str, Any], message: str) -> None:
    config = {**COMMAND_R, "tie_word_embeddings": True, "hidden_size": 3840, **fields}
    with pytest.raises(ValueError, match=message) as raised:
        plan_of("Cohere2ForCausalLM", config)
    assert len(str(raised.value)) < 200


def test_a_head_of_three_matrices_is_rejected() -> None:
    plan = plan_of("FalconForCausalLM", FALCON_7B)
    (linear,) = (op for op in plan.logits if isinstance(op, Linear))
    head = SimpleNamespace(logits=[linear] * 3)
    with pytest.raises(ValueError, match="2 matrices of logits at most, not 3"):
        LogitsHead(cast(ModelPlan, head))


@pytest.mark.parametrize(
    "architecture",
    [
        *("GemmaForCausalLM", "Gemma2ForCausalLM", "GlmForCausalLM", "Glm4ForCausalLM"),
        *("Glm4MoeForCausalLM", "GptOssForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
        *("Ministral3ForCausalLM", "PhimoeForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        *("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "SmolLM3ForCausalLM"),
        *("Ernie4_5ForCausalLM", "Exaone4ForCausalLM", "HeliumForCausalLM", "CwmForCausalLM"),
        *("StableLmForCausalLM", "Starcoder2ForCausalLM", "SeedOssForCausalLM"),
        *("MiniMaxM2ForCausalLM", "VaultGemmaForCausalLM", "OrionForCausalLM"),
        *("Ernie4_5_MoeForCausalLM", "Dots1ForCausalLM"),
        *("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
    ],
)
def test_kv_heads_are_needed_where_the_class_has_a_number(architecture: str) -> None:
    with pytest.raises(KeyError, match="num_key_value_heads"):
        plan_of(architecture, {"num_attention_heads": 4, "hidden_size": 64})
