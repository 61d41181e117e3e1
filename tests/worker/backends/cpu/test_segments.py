"""The number of segments of k that a model's products get."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_kernels.segments import MAX_SEGMENTS, TILE_K
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.backends.cpu.segments import MIN_STEPS, most_segments, num_segments
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.registry import find_recipe

LLAMA: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "vocab_size": 100,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128,
}
DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "architecture": "DeepseekV2ForCausalLM",
    "num_hidden_layers": 2,
    "intermediate_size": 10944,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 1408,
}
# The configuration of a published model, and its number of segments.
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.2-1B": (LLAMA, 4),
    "Llama-3.1-8B": ({**LLAMA, "hidden_size": 4096, "intermediate_size": 14336}, 8),
    "Qwen2-0.5B": (
        {
            **LLAMA,
            "architecture": "Qwen2ForCausalLM",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
        },
        2,
    ),
    "SmolLM2-135M: 9 heads": (
        {
            **LLAMA,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
        },
        1,
    ),
    "DeepSeek-V2-Lite": (DEEPSEEK, 2),
}


def plan_of(fields: dict[str, Any]) -> ModelPlan:
    architecture = fields["architecture"]
    return find_recipe([architecture])[1](ConfigFields(fields), architecture)


def segments_by_matrix(plan: ModelPlan, kind: Any) -> dict[str, int]:
    matrices = [name for name, parameter in plan.parameters.items() if len(parameter.shape) > 1]
    return dict(lower_plan(plan, dict.fromkeys(matrices, kind)).segments)


@pytest.mark.parametrize("name", MODELS)
def test_number_of_published_models(name: str) -> None:
    fields, wanted = MODELS[name]
    assert num_segments(plan_of(fields)) == wanted


def test_outputs_of_attention_and_mlps_alone_have_segments() -> None:
    plan = plan_of(LLAMA)
    outputs = {name for name in plan.parameters if "out_proj" in name or "down_proj" in name}
    assert len(outputs) == 2
    for kind in ("bf16", "f32"):
        assert segments_by_matrix(plan, kind) == dict.fromkeys(outputs, 4)


def test_int8_has_no_segments() -> None:
    assert segments_by_matrix(plan_of(LLAMA), "i8") == {}


def test_experts_have_no_segments() -> None:
    plan = plan_of(DEEPSEEK)
    names = segments_by_matrix(plan, "bf16")
    assert any("shared_mlp.down_proj" in name for name in names)
    assert not any("moe." in name for name in names)


@given(
    parts=st.integers(1, 300),
    part=st.sampled_from((1, 32, 64)),
    unit=st.sampled_from((1, 20, 64, 80, 96, 112, 128, 192, 256)),
)
def test_segments_are_equal_whole_and_long(parts: int, part: int, unit: int) -> None:
    k = parts * part * unit

    def fits(count: int) -> bool:
        size, rest = divmod(k, count)
        is_whole = rest == 0 and size % unit == 0 and size % TILE_K == 0
        return is_whole and size >= MIN_STEPS * TILE_K

    count = most_segments(k, unit)

    assert count in (1, 2, 4, MAX_SEGMENTS)
    assert count == 1 or fits(count)
    assert not any(fits(more) for more in (2, 4, MAX_SEGMENTS) if more > count)
