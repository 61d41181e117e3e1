"""LFM2 and LFM2 MoE, also as the text part of LFM2-VL."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import ROPE_FIELDS, SIZES
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant
from support.architectures.wrapped import Wrapped, text_sweep

_SHARED: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 3,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "conv_L_cache": 3,
    "conv_bias": False,
    "pad_token_id": 0,
}
_LFM_2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    **_SHARED,
    "block_ff_dim": 150,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.1,
    "block_multiple_of": 24,
    "block_norm_eps": 1e-5,
    "block_use_swiglu": True,
    "full_attn_idxs": [1],
    "use_pos_enc": True,
    "tie_embedding": True,
}
_LFM_2_MOE: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    **_SHARED,
    "moe_intermediate_size": 40,
    "num_dense_layers": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "use_expert_bias": True,
    "layer_types": ["conv", "full_attention", "conv"],
    "tie_word_embeddings": True,
}
# The text part as transformers 5 writes it.
_TEXT: dict[str, Any] = {
    **_LFM_2,
    "layer_types": ["conv", "conv", "full_attention"],
    "intermediate_size": 88,
    "block_auto_adjust_ff_dim": False,
}
del _TEXT["block_ff_dim"], _TEXT["full_attn_idxs"]
_FIELDS: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("num_attention_heads", 12),
    ("num_key_value_heads", 1),
    ("vocab_size", 400),
    ("max_position_embeddings", 128),
    *ROPE_FIELDS,
    ("norm_eps", 0.3),
    ("norm_eps", REMOVED),
    ("conv_L_cache", 2),
    ("conv_L_cache", 5),
    ("conv_L_cache", REMOVED),
    ("conv_bias", True),
    ("conv_bias", REMOVED),
)
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("conv_L_cache", 1),
    ("conv_dim", 88),
    ("conv_dim_out", 88),
    ("partial_rotary_factor", 0.5),
)
_VISION = "model.vision_tower.vision_model.post_layernorm.weight"

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "lfm2-like",
        _LFM_2,
        Native("Lfm2ForCausalLM"),
        (
            *_FIELDS,
            ("num_hidden_layers", 4),
            ("intermediate_size", 88),
            ("block_ff_dim", 200),
            ("block_ff_dim", REMOVED),
            ("block_auto_adjust_ff_dim", False),
            ("block_auto_adjust_ff_dim", REMOVED),
            ("block_ffn_dim_multiplier", 0.7),
            ("block_ffn_dim_multiplier", REMOVED),
            ("block_multiple_of", 16),
            ("block_multiple_of", REMOVED),
            ("block_norm_eps", 0.3),
            ("full_attn_idxs", [0, 2]),
            ("full_attn_idxs", REMOVED),
            ("layer_types", ["conv", "conv", "full_attention"]),
            ("tie_embedding", False),
            ("tie_embedding", REMOVED),
        ),
        rejected=(*_REJECTED, ("block_use_swiglu", False), ("use_pos_enc", False)),
    ),
    Variant(
        "lfm2-transformers-5-like",
        _TEXT,
        Native("Lfm2ForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "lfm2-moe-like",
        _LFM_2_MOE,
        Native("Lfm2MoeForCausalLM"),
        (
            *_FIELDS,
            ("intermediate_size", 88),
            ("moe_intermediate_size", 48),
            ("num_dense_layers", 0),
            ("num_dense_layers", 3),
            ("num_dense_layers", REMOVED),
            ("num_experts", 7),
            ("num_experts_per_tok", 1),
            ("num_experts_per_tok", REMOVED),
            ("norm_topk_prob", False),
            ("norm_topk_prob", REMOVED),
            ("routed_scaling_factor", REMOVED),
            ("use_expert_bias", False),
            ("use_expert_bias", REMOVED),
            ("layer_types", ["full_attention", "conv", "full_attention"]),
            ("tie_word_embeddings", False),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=_REJECTED,
    ),
    Variant(
        "lfm2-moe-stacked-like",
        _LFM_2_MOE,
        Native("Lfm2MoeForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "lfm2-vl-like",
        {
            "architectures": ["Lfm2VlForConditionalGeneration"],
            "model_type": "lfm2_vl",
            "text_config": _TEXT,
            "vision_config": {"hidden_size": 24},
        },
        Wrapped(Native("Lfm2ForCausalLM"), {"model.": "model.language_model."}, _VISION),
        text_sweep(
            _TEXT,
            (
                ("hidden_size", 96),
                ("num_key_value_heads", 1),
                ("layer_types", ["full_attention", "conv", "full_attention"]),
                ("tie_embedding", False),
                ("tie_embedding", REMOVED),
            ),
        ),
        text_sweep({**_TEXT, "architectures": []}, [("model_type", "unknown")]),
        without_effect=(_VISION,),
    ),
)
