"""Jais 2: Llama with LayerNorm, biases, and squared ReLU in an MLP without a gate."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec, two_layer_mlp
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=True)
    mlp_bias = fields.flag("mlp_bias", default=True)
    activation = fields.activation("hidden_act", default="relu2")
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        mlp=two_layer_mlp(fields, "up_proj", "down_proj", activation, bias=mlp_bias),
        norm=layer_norm(fields.epsilon("layer_norm_eps", default=1e-5)),
    )
    return decoder(architecture, spec)
