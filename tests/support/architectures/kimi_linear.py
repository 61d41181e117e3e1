"""Kimi Linear: delta attention with a decay of each column, latent attention, and experts."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import SIZES
from support.architectures.qwen3_next import FULL, LINEAR, TokenByToken
from support.architectures.variant import REMOVED, Variant

_LINEAR: dict[str, Any] = {
    "full_attn_layers": [2],
    "head_dim": 12,
    "kda_layers": [1, 3],
    "num_heads": 5,
    "short_conv_kernel_size": 4,
}
_CONFIG: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    **{name: value for name, value in SIZES.items() if name != "max_position_embeddings"},
    "num_hidden_layers": 3,
    "num_key_value_heads": 6,
    "first_k_dense_replace": 1,
    "head_dim": 12,
    "hidden_act": "silu",
    "kv_lora_rank": 24,
    "linear_attn_config": _LINEAR,
    "mla_use_nope": True,
    "model_max_length": 256,
    "moe_intermediate_size": 40,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_expert_group": 1,
    "num_experts": 6,
    "num_experts_per_token": 3,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "pad_token_id": None,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "rms_norm_eps": 1e-2,  # norms of small outputs amplify rounding errors
    "rope_scaling": None,
    "rope_theta": 10_000.0,
    "routed_scaling_factor": 1.7,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 10,
}
_CHUNKS = "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"


def _native(*, as_saved: bool = False) -> TokenByToken:
    chunked, recurrent = _CHUNKS
    return TokenByToken(
        "KimiLinearForCausalLM",
        as_saved_by_transformers=as_saved,
        chunked=chunked,
        recurrent=recurrent,
    )


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "kimi-linear-like",
        _CONFIG,
        _native(),
        (
            ("hidden_size", 96),
            ("intermediate_size", 88),
            ("vocab_size", 400),
            ("model_max_length", 128),
            ("first_k_dense_replace", 0),
            ("first_k_dense_replace", 2),
            ("first_k_dense_replace", REMOVED),
            ("mlp_layer_types", ["sparse", "dense", "sparse"]),
            ("head_dim", 16),
            ("kv_lora_rank", 32),
            ("layer_types", [LINEAR, LINEAR, FULL]),
            ("linear_attn_config", {**_LINEAR, "head_dim": 16}),
            ("linear_attn_config", {**_LINEAR, "num_heads": 3}),
            ("linear_attn_config", {**_LINEAR, "short_conv_kernel_size": 3}),
            ("linear_attn_config", {**_LINEAR, "full_attn_layers": [1, 3], "kda_layers": [2]}),
            ("linear_attn_config", {"head_dim": 12, "num_heads": 5}),
            ("moe_intermediate_size", 48),
            ("moe_renormalize", False),
            ("moe_renormalize", REMOVED),
            ("num_expert_group", REMOVED),
            ("num_expert_group", 2),
            ("num_experts", 8),
            ("num_experts_per_token", 2),
            ("num_nextn_predict_layers", 1),
            ("num_shared_experts", 2),
            ("num_shared_experts", REMOVED),
            ("q_lora_rank", 28),
            ("q_lora_rank", REMOVED),
            ("qk_nope_head_dim", 16),
            ("qk_rope_head_dim", 4),
            ("rms_norm_eps", 0.3),
            ("rope_scaling", REMOVED),
            ("rope_theta", 700.0),
            ("routed_scaling_factor", 2.5),
            ("routed_scaling_factor", REMOVED),
            ("topk_group", REMOVED),
            ("v_head_dim", 16),
            ("attention_bias", True),
        ),
        rejected=(
            ("hidden_act", "gelu"),
            ("mla_use_nope", False),
            ("moe_layer_freq", 2),
            ("moe_router_activation_func", "softmax"),
            ("num_attention_heads", 12),
            ("num_key_value_heads", 3),
            ("tie_word_embeddings", True),
            ("use_grouped_topk", False),
        ),
    ),
    Variant(
        "kimi-linear-default-layers-like",
        {
            **{name: value for name, value in _CONFIG.items() if name != "linear_attn_config"},
            "num_hidden_layers": 5,
            "num_expert_group": 3,
            "topk_group": 2,
            "num_experts_per_token": 4,
            "linear_head_dim": 12,
            "linear_num_heads": 5,
            "linear_conv_kernel_dim": 4,
        },
        _native(),
        (
            ("num_hidden_layers", 6),
            ("linear_head_dim", 16),
            ("linear_num_heads", 3),
            ("linear_conv_kernel_dim", 3),
            ("linear_conv_kernel_dim", REMOVED),
            ("topk_group", 3),
        ),
    ),
    Variant("kimi-linear-transformers-5-like", _CONFIG, _native(as_saved=True)),
)
