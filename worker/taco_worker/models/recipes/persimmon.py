"""Persimmon: squared ReLU, partial rotation, and LayerNorms of each query and key head."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import Heads
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import ATTENTION, decoder
from taco_worker.models.plan.llama_block import (
    head_norms,
    llama_attention,
    llama_spec,
    two_layer_mlp,
)
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    num_heads = fields.size("num_attention_heads")
    heads = Heads(num_heads, num_heads, fields.size("hidden_size") // num_heads)
    norm = layer_norm(fields.epsilon("layer_norm_eps", default=1e-5))
    attention = replace(
        llama_attention(fields, heads, qkv_bias=True, out_bias=True, out="dense"),
        qkv=heads.grouped(f"{ATTENTION}.query_key_value"),
    )
    if fields.flag("qk_layernorm", default=True):
        norms = head_norms(norm, "q_layernorm", "k_layernorm")
        attention = replace(attention, head_norm=norms)
    activation = fields.activation("hidden_act", default="relu2")
    spec = llama_spec(
        fields,
        default_partial=0.5,
        attention=attention,
        mlp=two_layer_mlp(fields, "dense_h_to_4h", "dense_4h_to_h", activation, bias=True),
        norm=norm,
        final_norm="model.final_layernorm",
    )
    return decoder(architecture, spec)
