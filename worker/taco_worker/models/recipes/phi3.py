"""Phi 3 and Phi 4: Llama with fused projections, partial rotation and LongRoPE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import ATTENTION, DecoderSpec, decoder
from taco_worker.models.plan.llama_block import fused_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, phi3_spec(fields))


def phi3_spec(fields: ConfigFields, **changes: Any) -> DecoderSpec:
    fields.only("attention_bias", False)
    spec = llama_spec(
        fields,
        eps=1e-5,
        default_partial=1.0,
        mlp=fused_mlp(fields),
        windows=[fields.optional_size("sliding_window")] * fields.size("num_hidden_layers"),
        **changes,
    )
    qkv = spec.attention.heads.packed(f"{ATTENTION}.qkv_proj")
    return replace(spec, attention=replace(spec.attention, qkv=qkv))
