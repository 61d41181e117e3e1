"""Arcee: Llama with squared ReLU in an MLP without a gate."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec, two_layer_mlp
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    mlp_bias = fields.flag("mlp_bias", default=False)
    activation = fields.activation("hidden_act", default="relu2")
    mlp = two_layer_mlp(fields, "up_proj", "down_proj", activation, bias=mlp_bias)
    return decoder(
        architecture, llama_spec(fields, qkv_bias=bias, out_bias=bias, eps=1e-5, mlp=mlp)
    )
