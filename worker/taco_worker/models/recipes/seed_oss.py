"""Seed-OSS: Llama with a separate bias option for the output projection."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("attention_bias", default=True),
        out_bias=fields.flag("attention_out_bias", default=False),
        default_head_dim=128,
        mlp=llama_mlp(fields, bias=fields.flag("mlp_bias", default=False)),
    )
    return decoder(architecture, spec)
