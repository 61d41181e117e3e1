"""Falcon-H1: attention and Mamba 2 side by side in every layer, and factors on most products."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import attention
from taco_worker.models.plan.builder import PlanBuilder
from taco_worker.models.plan.decoder_block import LAYER, LLAMA_NAMES
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mamba_block import mamba
from taco_worker.models.plan.mlp_block import gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.falcon_h1_layers import (
    attention_spec,
    factor,
    factors,
    mamba_spec,
    scaled_mlp,
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads", "mamba_d_ssm")
    fields.only("attn_layer_indices", None)
    fields.only("mamba_use_mlp", True)
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    mlp_bias, bias = (fields.flag(f"{name}_bias", default=False) for name in ("mlp", "attention"))
    activation = fields.activation("hidden_act", default="silu")
    mlp = gated_mlp(f"{LAYER}.feed_forward", size, hidden_size, activation, bias=mlp_bias)
    spec = llama_spec(fields, qkv_bias=bias, out_bias=bias, eps=1e-5, mlp=mlp)
    attention_scale = factor(fields, "attention_in") * factor(fields, "attention_out")
    mamba_scale = factor(fields, "ssm_out")
    gate_scale, mlp_scale = factors(fields, "mlp_multipliers", 2)

    b = PlanBuilder(vocab_size=spec.sizes.vocab_size, hidden_size=hidden_size)
    b.embed(spec.embedding, scale=factor(fields, "embedding"))
    attended, recurrent = attention_spec(b, fields, spec), mamba_spec(fields, spec)
    for _ in range(spec.sizes.num_layers):
        with b.layer():
            x = b.norm(b.stream, "attn_norm", f"{LAYER}.input_layernorm", spec.norm)
            b.residual(mamba(b, x, recurrent), scale=mamba_scale)
            b.residual(attention(b, x, attended), scale=attention_scale)
            x = b.norm(b.stream, "mlp_norm", f"{LAYER}.pre_ff_layernorm", spec.norm)
            b.residual(scaled_mlp(b, x, mlp, gate_scale), scale=mlp_scale)
    b.final_norm("model.final_layernorm", spec.norm)
    b.head(spec.head.module, tied=spec.head.tied, scale=factor(fields, "lm_head"))
    return b.build(architecture, spec.sizes.max_position_embeddings, LLAMA_NAMES)
