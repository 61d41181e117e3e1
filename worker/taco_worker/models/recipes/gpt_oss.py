"""gpt-oss: a mixture of experts in every layer, attention sinks, windows in every other layer."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import ATTENTION, Rotary, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_type
from taco_worker.models.recipes.gpt_oss_experts import mixture_of_experts
from taco_worker.models.rope_parsing import parse_rotary

# The scaling of configs without one.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    rope = fields.get("rope_parameters", "rope_scaling", default=_YARN)
    settings = parse_rotary({**fields.values, "rope_parameters": rope}, default_theta=150_000.0)
    bias = fields.flag("attention_bias", default=True)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_head_dim=64,
        rotary=Rotary(settings={"rope": settings}),
        windows=windows_by_type(fields, period=2, default_window=128),
        mixtures=[mixture_of_experts(fields)] * fields.size("num_hidden_layers"),
    )
    attention = replace(spec.attention, sinks=f"{ATTENTION}.sinks")
    return decoder(architecture, replace(spec, attention=attention))
