"""DBRX: LayerNorm, clipped queries, keys and values, and experts in flat tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import LayerNorms, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.dbrx_experts import LAYER, mixture_of_experts

_ATTENTION = f"{LAYER}.norm_attn_norm.attn"
_NORMS = LayerNorms(
    attn_in=f"{LAYER}.norm_attn_norm.norm_1", mlp_in=f"{LAYER}.norm_attn_norm.norm_2"
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("tie_word_embeddings", False)
    attn, ffn = _nested(fields, "attn_config"), _nested(fields, "ffn_config")
    hidden_size, num_layers = (
        fields.size("d_model", default=2048),
        fields.size("n_layers", default=24),
    )
    mixture = mixture_of_experts(ffn, hidden_size)
    theta = attn.positive("rope_theta", default=10_000.0)
    named = {
        "hidden_size": hidden_size,
        "intermediate_size": mixture.size,
        "max_position_embeddings": fields.size("max_seq_len", default=2048),
        "num_attention_heads": fields.size("n_heads", default=16),
        "num_hidden_layers": num_layers,
        "num_key_value_heads": attn.size("kv_n_heads", default=1),
        "rope_parameters": fields.get("rope_parameters"),
        "rope_scaling": fields.get("rope_scaling"),
        "rope_theta": theta,
        "vocab_size": fields.size("vocab_size", default=32_000),
    }
    spec = llama_spec(
        ConfigFields(named),
        mixtures=[mixture] * num_layers,
        norm=layer_norm(1e-5, bias=False),
        norms=_NORMS,
        embedding="transformer.wte",
        final_norm="transformer.norm_f",
    )
    assert spec.rotary is not None
    if (other := spec.rotary.settings["rope"].theta) != theta:
        raise ValueError(f"rope_theta is {other} in rope_parameters, and {theta} in attn_config")
    attention = replace(
        spec.attention,
        qkv=spec.attention.heads.packed(f"{_ATTENTION}.Wqkv"),
        out=Module(f"{_ATTENTION}.out_proj", spec.sizes.hidden_size),
        clip=attn.optional_positive("clip_qkv"),
    )
    return decoder(architecture, replace(spec, attention=attention))


def _nested(fields: ConfigFields, name: str) -> ConfigFields:
    value: Any = fields.get(name, default={})
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, not {value!r:.100}")
    return ConfigFields(value)
