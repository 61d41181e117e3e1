"""Mixtures of experts whose router is a sigmoid with a correction bias: MiniMax-M2, AFMoE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from support.architectures.latent import prediction_layers
from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_MINIMAX_M2: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    **LLAMA,
    "head_dim": 20,
    "rotary_dim": 12,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "scoring_func": "sigmoid",
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "use_routing_bias": True,
    "shared_intermediate_size": 0,
    "mtp_transformer_layers": 1,
    "num_mtp_modules": 1,
    "router_jitter_noise": 0.0,
}
_AFMOE: dict[str, Any] = {
    "architectures": ["AfmoeForCausalLM"],
    "model_type": "afmoe",
    **LLAMA,
    "num_hidden_layers": 3,
    "head_dim": 20,
    "attention_bias": False,
    "global_attn_every_n_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 7,
    "moe_intermediate_size": 40,
    "num_dense_layers": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "score_func": "sigmoid",
    "route_norm": True,
    "route_scale": 1.7,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_groups": 1,
    "num_limited_groups": 1,
    "mup_enabled": True,
    "pad_token_id": None,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 1),
    ("head_dim", 16),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rms_norm_eps", REMOVED),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", REMOVED),
    ("num_experts_per_tok", 1),
    ("num_experts_per_tok", 3),
)


def _next_token_layers(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    count = config["num_mtp_modules"] * config.get("mtp_transformer_layers", 1)
    return prediction_layers({**config, "num_nextn_predict_layers": count})


def _stacked(variant: Variant) -> Variant:
    """The same checkpoint as transformers 5 saves its own form of it: experts in 3-D tensors."""
    assert isinstance(variant.layout, Native)
    layout = replace(variant.layout, as_saved_by_transformers=True)
    name = variant.name.removesuffix("-like") + "-stacked-like"
    return replace(variant, name=name, layout=layout, fields=(), rejected=())


_ONE_BY_ONE: tuple[Variant, ...] = (
    Variant(
        "minimax-m2-like",
        _MINIMAX_M2,
        Native("MiniMaxM2ForCausalLM", ignored=_next_token_layers),
        fields=(
            *_FIELDS,
            *ROPE_FIELDS,
            ("rotary_dim", 20),
            ("rotary_dim", REMOVED),
            ("partial_rotary_factor", 0.4),
            ("num_local_experts", 7),
            ("num_local_experts", REMOVED),
            ("attn_type_list", [1, 1]),
            ("sliding_window", None),
            ("num_mtp_modules", 2),
            ("num_mtp_modules", 0),
            ("mtp_transformer_layers", 2),
            ("mtp_transformer_layers", REMOVED),
            ("router_jitter_noise", 0.5),
        ),
        rejected=(
            ("scoring_func", "softmax"),
            ("use_qk_norm", False),
            ("qk_norm_type", "per_head"),
            ("use_routing_bias", False),
            ("shared_intermediate_size", 32),
            ("attn_type_list", [1, 0]),
            ("sliding_window", 7),
            ("num_mtp_modules", 3),
        ),
        without_effect=(".enorm.weight", ".eh_proj.weight"),
    ),
    Variant(
        "trinity-like",
        _AFMOE,
        Native("AfmoeForCausalLM"),
        fields=(
            *(field for field in _FIELDS if field[0] != "num_hidden_layers"),
            *ROPE_FIELDS,
            ("num_key_value_heads", REMOVED),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("layer_types", ["full_attention", "sliding_attention", "full_attention"]),
            ("layer_types", REMOVED),
            ("sliding_window", 5),
            ("sliding_window", REMOVED),
            ("moe_intermediate_size", 48),
            ("num_dense_layers", 0),
            ("num_dense_layers", REMOVED),
            ("num_dense_layers", 3),
            ("num_experts", 7),
            ("num_experts", REMOVED),
            ("num_shared_experts", 1),
            ("num_shared_experts", REMOVED),
            ("route_scale", 2.826),
            ("route_scale", REMOVED),
            ("mup_enabled", False),
            ("mup_enabled", REMOVED),
        ),
        rejected=(
            ("score_func", "softmax"),
            ("route_norm", False),
            ("n_group", 2),
            ("topk_group", 2),
            ("num_expert_groups", 2),
            ("num_limited_groups", 2),
            ("partial_rotary_factor", 0.5),
        ),
    ),
)

VARIANTS: tuple[Variant, ...] = (
    *_ONE_BY_ONE,
    *(_stacked(variant) for variant in _ONE_BY_ONE),
    Variant(
        "trinity-by-period-like",
        {**_AFMOE, "layer_types": None, "num_experts": 7, "num_experts_per_tok": 3},
        Native("AfmoeForCausalLM"),
        fields=(
            ("global_attn_every_n_layers", 2),
            ("global_attn_every_n_layers", REMOVED),
            ("num_hidden_layers", 4),
            ("num_experts_per_tok", REMOVED),
        ),
    ),
)
