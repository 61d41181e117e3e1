"""Qwen 3 MoE: Qwen 3 with a mixture of experts in some layers."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import DecoderSpec, decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.qwen2_moe import mixtures, qwen_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    experts = qwen_experts(fields, fields.size("moe_intermediate_size"))
    return decoder(architecture, qwen3_moe_spec(fields, experts))


def qwen3_moe_spec(fields: ConfigFields, experts: MoeSpec) -> DecoderSpec:
    bias = fields.flag("attention_bias", default=False)
    has_window = fields.flag("use_sliding_window", default=False)
    window = fields.size("sliding_window") if has_window else None
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        windows=[window] * fields.size("num_hidden_layers"),
        mixtures=mixtures(fields, experts),
    )
    return replace(spec, attention=replace(spec.attention, head_norm=head_norms(spec.norm)))
