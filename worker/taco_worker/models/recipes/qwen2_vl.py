"""Qwen2-VL and Qwen2.5-VL, the text part: Qwen2 whose positions have three axes (M-RoPE)."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_depth
from taco_worker.models.rope_parsing import parse_rotary


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    if not parse_rotary(fields.values).sections:
        raise ValueError(f"{architecture} needs an mrope_section in rope_scaling")
    spec = llama_spec(
        fields,
        qkv_bias=True,
        eps=1e-5,
        default_theta=1e6,
        windows=windows_by_depth(fields, default_start=80),
    )
    return decoder(architecture, spec)
