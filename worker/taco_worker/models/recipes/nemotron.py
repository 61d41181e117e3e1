"""Nemotron: LayerNorms of 1 + weight, and an MLP with squared ReLU."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec, two_layer_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import PlusOne


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    activation = fields.activation("hidden_act", default="relu2")
    norm = layer_norm(fields.epsilon("norm_eps", default=1e-5))
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_partial=0.5,
        mlp=two_layer_mlp(fields, "up_proj", "down_proj", activation, bias=mlp_bias),
        norm=replace(norm, views=(PlusOne(),)),
    )
    return decoder(architecture, spec)
