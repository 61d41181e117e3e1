"""Qwen3: Llama with norms of each query and key head."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_depth


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_head_dim=128,
        windows=windows_by_depth(fields),
    )
    attention = replace(spec.attention, head_norm=head_norms(spec.norm))
    return decoder(architecture, replace(spec, attention=attention))
