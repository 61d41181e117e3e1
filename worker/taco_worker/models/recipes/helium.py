"""Helium 1: Llama with interleaved rotary pairs, and no bias of the output projection."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("attention_bias", default=False),
        eps=1e-8,
        default_head_dim=128,
        default_theta=100_000.0,
        mlp=llama_mlp(fields, bias=fields.flag("mlp_bias", default=False)),
    )
    heads = spec.attention.heads
    if heads.query_size != spec.sizes.hidden_size:
        raise ValueError(
            f"head_dim {heads.head_dim} of {heads.num_heads} heads is not supported, only "
            f"hidden_size {spec.sizes.hidden_size} divided by the number of heads"
        )
    assert spec.rotary is not None
    return decoder(architecture, replace(spec, rotary=replace(spec.rotary, style="interleaved")))
