"""Phi 1 and 2: attention and MLP read one norm, with biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import LayerNorms, decoder
from taco_worker.models.plan.llama_block import (
    head_norms,
    llama_attention,
    llama_spec,
    read_heads,
    two_layer_mlp,
)
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    norm = layer_norm(fields.epsilon("layer_norm_eps", default=1e-5))
    activation = fields.activation("hidden_act", default="gelu_new")
    attention = llama_attention(
        fields, read_heads(fields), qkv_bias=True, out_bias=True, out="dense"
    )
    if fields.flag("qk_layernorm", default=False):
        norms = head_norms(norm, "q_layernorm", "k_layernorm")
        attention = replace(attention, head_norm=norms)
    spec = llama_spec(
        fields,
        default_partial=0.5,
        attention=attention,
        mlp=two_layer_mlp(fields, "fc1", "fc2", activation, bias=True),
        norm=norm,
        norms=LayerNorms(mlp_in=None, sums="parallel"),
        final_norm="model.final_layernorm",
    )
    return decoder(architecture, replace(spec, head=replace(spec.head, bias=True)))
