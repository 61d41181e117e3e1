"""Qwen 3 MoE: Qwen 3 with a mixture of experts in some layers."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.qwen2_moe import mixtures, qwen_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    bias = fields.flag("attention_bias", default=False)
    has_window = fields.flag("use_sliding_window", default=False)
    window = fields.size("sliding_window") if has_window else None
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        windows=[window] * fields.size("num_hidden_layers"),
        mixtures=mixtures(fields, qwen_experts(fields, fields.size("moe_intermediate_size"))),
    )
    attention = replace(spec.attention, head_norm=head_norms(spec.norm))
    return decoder(architecture, replace(spec, attention=attention))
