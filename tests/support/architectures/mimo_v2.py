"""MiMo-V2-Flash: published configs, and those of transformers with other names of the fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SIZES: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    **{name: value for name, value in LLAMA.items() if name not in ("rope_theta", "rms_norm_eps")},
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "v_head_dim": 12,
    "attention_bias": False,
    "attention_value_scale": 0.6,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": None,
}
_PUBLISHED: dict[str, Any] = {
    **_SIZES,
    "layernorm_epsilon": 1e-5,
    "hybrid_layer_pattern": [0, 1, 1],
    "moe_layer_freq": [0, 1, 1],
    "partial_rotary_factor": 0.4,
    "rope_theta": 5000.0,
    "swa_rope_theta": 700.0,
    "sliding_window": 6,
    "sliding_window_size": 6,
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 20,
    "swa_v_head_dim": 12,
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_shared_experts": None,
}
_ROPE = {
    _FULL: {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.4},
    _SLIDING: {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.6},
}
_NATIVE: dict[str, Any] = {
    **_SIZES,
    "rms_norm_eps": 1e-5,
    "layer_types": [_SLIDING, _FULL, _SLIDING],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_parameters": _ROPE,
    "sliding_window": 7,
}


def _to_native(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers reads neither the published names of these fields nor the thetas."""
    fields = dict(config)
    partial = fields.pop("partial_rotary_factor", 0.334)
    thetas = fields.pop("rope_theta", 5e6), fields.pop("swa_rope_theta", 1e4)
    fields["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": partial}
        for kind, theta in zip((_FULL, _SLIDING), thetas, strict=True)
    }
    fields["rms_norm_eps"] = fields.pop("layernorm_epsilon", 1e-5)
    if (pattern := fields.pop("hybrid_layer_pattern", None)) is not None:
        fields["layer_types"] = [_SLIDING if one else _FULL for one in pattern]
    if (experts := fields.pop("moe_layer_freq", None)) is not None:
        fields["mlp_layer_types"] = ["sparse" if one else "dense" for one in experts]
    return fields


def _prediction_layers(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {"model.mtp.layers.0.enorm.weight": torch.ones(config["hidden_size"])}


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "mimo-v2-flash-like",
        _PUBLISHED,
        Native("MiMoV2FlashForCausalLM", to_native=_to_native, ignored=_prediction_layers),
        fields=(
            ("layernorm_epsilon", 0.3),
            ("layernorm_epsilon", REMOVED),
            ("hybrid_layer_pattern", [1, 0, 1]),
            ("hybrid_layer_pattern", REMOVED),
            ("moe_layer_freq", [1, 0, 1]),
            ("moe_layer_freq", [0, 0, 0]),
            ("moe_layer_freq", REMOVED),
            ("partial_rotary_factor", 0.6),
            ("partial_rotary_factor", REMOVED),
            ("rope_theta", 300.0),
            ("rope_theta", REMOVED),
            ("swa_rope_theta", 300.0),
            ("swa_rope_theta", REMOVED),
            ("sliding_window_size", 4),
            ("sliding_window_size", REMOVED),
        ),
        rejected=(
            ("swa_num_attention_heads", 12),
            ("swa_num_key_value_heads", 1),
            ("swa_head_dim", 16),
            ("swa_v_head_dim", 16),
            ("add_full_attention_sink_bias", True),
            ("add_swa_attention_sink_bias", False),
            ("scoring_func", "softmax"),
            ("topk_method", "greedy"),
            ("n_shared_experts", 1),
        ),
        without_effect=("enorm.weight",),
    ),
    Variant(
        "mimo-v2-flash-by-type-like",
        _NATIVE,
        Native("MiMoV2FlashForCausalLM"),
        fields=(
            *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
            ("num_key_value_heads", 3),
            ("hidden_act", "gelu"),
            ("head_dim", 30),
            ("v_head_dim", 24),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("attention_value_scale", None),
            ("attention_value_scale", REMOVED),
            ("moe_intermediate_size", 48),
            ("n_routed_experts", 4),
            ("num_experts_per_tok", 3),
            ("n_group", 2),
            ("n_group", REMOVED),
            ("topk_group", REMOVED),
            ("norm_topk_prob", False),
            ("norm_topk_prob", REMOVED),
            ("routed_scaling_factor", 1.7),
            ("routed_scaling_factor", REMOVED),
            ("rms_norm_eps", 0.3),
            ("tie_word_embeddings", True),
            ("layer_types", [_FULL, _FULL, _SLIDING]),
            ("layer_types", REMOVED),
            ("mlp_layer_types", ["dense", "sparse", "dense"]),
            ("mlp_layer_types", REMOVED),
            ("rope_parameters", REMOVED),
            ("rope_parameters", {**_ROPE, _FULL: {"rope_type": "default", "rope_theta": 300.0}}),
            ("sliding_window", 5),
            ("sliding_window", REMOVED),
        ),
    ),
    Variant(
        "mimo-v2-flash-by-period-like",
        {**_NATIVE, "layer_types": None, "mlp_layer_types": None, "num_hidden_layers": 2},
        Native("MiMoV2FlashForCausalLM", as_saved_by_transformers=True),
        fields=(("num_hidden_layers", 7),),
    ),
)
