"""Apertus: norms of each query and key head, and an MLP with xIELU instead of a gate."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LAYER, MLP, LayerNorms, decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec, two_layer_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.cwm import with_rope

_NORMS = LayerNorms(attn_in=f"{LAYER}.attention_layernorm", mlp_in=f"{LAYER}.feedforward_layernorm")
_THETA = 12e6
# The settings of configs without any.
_ROPE = {
    "rope_theta": _THETA,
    "rope_type": "llama3",
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    for name, supported in (("qk_norm", True), ("post_norm", False), ("mlp_bias", False)):
        fields.only(name, supported)
    is_learned = fields.text("hidden_act", default="xielu") == "xielu"
    activation = "silu" if is_learned else fields.activation("hidden_act")
    mlp = two_layer_mlp(fields, "up_proj", "down_proj", activation, bias=False)
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(
        with_rope(fields, _ROPE),
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_theta=_THETA,
        mlp=replace(mlp, xielu=f"{MLP}.act_fn" if is_learned else None),
        norms=_NORMS,
    )
    attention = replace(spec.attention, head_norm=head_norms(spec.norm))
    return decoder(architecture, replace(spec, attention=attention))
