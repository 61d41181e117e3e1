"""Bamba: Mamba 2 in most layers, and attention that rotates half of each head in the others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LAYER, LayerNorms, decoder
from taco_worker.models.plan.hybrid_layers import listed_layers
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mamba_block import mamba, read_mamba
from taco_worker.models.plan.mlp_block import gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan

PARTIAL = 0.5  # of the class, whatever a config says


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("partial_rotary_factor", PARTIAL)
    num_layers = fields.size("num_hidden_layers")
    has_attention = listed_layers(fields, "attn_layer_indices") or [False] * num_layers
    bias = fields.flag("attention_bias", default=False)
    mlp = gated_mlp(
        f"{LAYER}.feed_forward",
        fields.size("intermediate_size"),
        fields.size("hidden_size"),
        fields.activation("hidden_act", default="silu"),
        bias=fields.flag("mlp_bias", default=False),
    )
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_partial=PARTIAL,
        mlp=mlp,
        norms=LayerNorms(mlp_in=f"{LAYER}.pre_ff_layernorm"),
        final_norm="model.final_layernorm",
    )
    if not all(has_attention):
        block = partial(mamba, spec=read_mamba(fields, f"{LAYER}.mamba", spec.norm))
        spec = replace(spec, mixers=[None if one else block for one in has_attention])
    return decoder(architecture, spec)
