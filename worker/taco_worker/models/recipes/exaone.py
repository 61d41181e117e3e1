"""EXAONE 3, 3.5 and Deep: Llama with other names of tensors and fields."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, rms
from taco_worker.models.plan.decoder_block import LayerNorms, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

_LAYER = "transformer.h.{layer}"
_ATTENTION = f"{_LAYER}.attn.attention"
_NAMES = TensorNames(ignored=(r"\.rotary(_emb)?\.inv_freq$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    for name in ("attention_bias", "bias", "mlp_bias"):
        fields.only(name, False)
    hidden_size = fields.size("hidden_size")
    size = fields.optional_size("intermediate_size") or 4 * hidden_size
    num_layers = fields.size("num_layers", "num_hidden_layers")
    spec = llama_spec(
        ConfigFields({**fields.values, "num_hidden_layers": num_layers}),
        tied=True,
        mlp=gated_mlp(
            f"{_LAYER}.mlp",
            size,
            hidden_size,
            fields.activation("activation_function", default="silu"),
            names=("c_fc_0", "c_fc_1", "c_proj"),
        ),
        norm=rms(fields.epsilon("layer_norm_epsilon", default=1e-6)),
        norms=LayerNorms(attn_in=f"{_LAYER}.ln_1", mlp_in=f"{_LAYER}.ln_2"),
        embedding="transformer.wte",
        final_norm="transformer.ln_f",
        names=_NAMES,
    )
    attention = replace(
        spec.attention,
        qkv=spec.attention.heads.separate(*(f"{_ATTENTION}.{name}_proj" for name in "qkv")),
        out=Module(f"{_ATTENTION}.out_proj", hidden_size),
    )
    return decoder(architecture, replace(spec, attention=attention))
