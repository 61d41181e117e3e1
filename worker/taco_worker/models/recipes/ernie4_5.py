"""ERNIE 4.5 0.3B: Llama with interleaved rotary pairs, and one option for all biases."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("compression_ratio", 1.0)  # a divisor of positions in the first published code
    bias = fields.flag("use_bias", default=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_head_dim=None if "head_dim" in fields.values else 128,
        default_theta=500_000.0,
        tied=True,
        mlp=llama_mlp(fields, bias=bias),
    )
    assert spec.rotary is not None
    return decoder(architecture, replace(spec, rotary=replace(spec.rotary, style="interleaved")))
