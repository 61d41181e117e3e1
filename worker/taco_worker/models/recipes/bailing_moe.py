"""Ling and Ring: DeepSeek MoE with queries, keys and values in one tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import HeadNorm
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import LAYER, DecoderSpec, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import NormalizeColumns
from taco_worker.models.recipes.deepseek import tensor_names
from taco_worker.models.recipes.deepseek_moe import softmax_experts

_ATTENTION = f"{LAYER}.attention"
_DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads", "use_bias")
    fields.only("use_qk_norm", False)
    fields = ConfigFields({**_DEFAULTS, **fields.values})
    spec = bailing_spec(fields, softmax_experts(with_deepseek_names(fields)))
    return decoder(architecture, spec)


def with_deepseek_names(fields: ConfigFields) -> ConfigFields:
    """The fields of the experts as DeepSeek's configs name them."""
    renamed = {
        "n_routed_experts": fields.size("num_experts"),
        "n_shared_experts": fields.count("num_shared_experts", default=0) or None,
        "scoring_func": fields.get("score_function"),
    }
    return ConfigFields({**fields.values, **renamed})


def bailing_spec(
    fields: ConfigFields, mixture: MoeSpec, *, default_partial: float | None = None
) -> DecoderSpec:
    """Both versions' decoder. `default_partial`: as of `llama_spec`."""
    fields.only("use_sliding_window", False)
    fields.only("use_rmsnorm", True)
    fields.only("use_bias", False)
    num_dense = fields.count("first_k_dense_replace")
    layers = range(fields.size("num_hidden_layers"))
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("use_qkv_bias", default=False),
        default_partial=default_partial,
        mixtures=[None if layer < num_dense else mixture for layer in layers],
        embedding="model.word_embeddings",
        names=tensor_names(fields),
    )
    if fields.flag("norm_head", default=False):
        fields.only("tie_word_embeddings", False)
        spec = replace(spec, head=replace(spec.head, views=(NormalizeColumns(),)))
    attention, norm = spec.attention, None
    if fields.flag("use_qk_norm", default=False):
        norm = HeadNorm(f"{_ATTENTION}.query_layernorm", f"{_ATTENTION}.key_layernorm", spec.norm)
    qkv = attention.heads.packed(f"{_ATTENTION}.query_key_value")
    out = Module(f"{_ATTENTION}.dense", spec.sizes.hidden_size)
    return replace(spec, attention=replace(attention, qkv=qkv, out=out, head_norm=norm))
