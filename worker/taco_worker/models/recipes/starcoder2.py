"""StarCoder 2: LayerNorms, biases, an MLP without a gate, and windows."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec, two_layer_mlp
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("mlp_type", "default")
    fields.only("norm_type", "layer_norm")
    bias = fields.flag("use_bias", default=True)
    activation = fields.activation("hidden_act", default="gelu_pytorch_tanh")
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        tied=True,
        mlp=two_layer_mlp(fields, "c_fc", "c_proj", activation, bias=bias),
        norm=layer_norm(fields.epsilon("norm_epsilon", default=1e-5)),
        windows=[fields.optional_size("sliding_window")] * fields.size("num_hidden_layers"),
    )
    return decoder(architecture, spec)
