"""Granite 4, with and without experts, Mamba layers and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

# Small sizes of Mamba 2, by the names of its fields in most hybrid models.
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6,
    "mamba_d_head": 24,
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
MAMBA_FIELDS: tuple[tuple[str, Any], ...] = (
    ("mamba_d_head", "auto"),
    ("mamba_d_head", REMOVED),
    ("mamba_n_groups", 1),
    ("mamba_n_groups", 3),
    ("mamba_n_groups", REMOVED),
    ("mamba_d_state", 24),
    ("mamba_d_state", REMOVED),
    ("mamba_d_conv", 2),
    ("mamba_d_conv", 3),
    ("mamba_d_conv", REMOVED),
    ("mamba_expand", REMOVED),
    ("mamba_chunk_size", 8),
    ("mamba_conv_bias", False),
    ("mamba_conv_bias", REMOVED),
    ("mamba_proj_bias", True),
    ("mamba_proj_bias", REMOVED),
    ("time_step_limit", [0.5, 0.8]),
)
MAMBA_REJECTED: tuple[tuple[str, Any], ...] = (("mamba_d_conv", 1),)


def without_limits(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers saves infinity as an object, which its config classes do not accept."""
    return {name: value for name, value in config.items() if name != "time_step_limit"}


_GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    **LLAMA,
    **MAMBA,
    "num_hidden_layers": 3,
    "mamba_d_head": "auto",
    "layer_types": ["mamba", "attention", "mamba"],
    "intermediate_size": 40,
    "shared_intermediate_size": 56,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "attention_bias": False,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "logits_scaling": 1.7,
    "residual_multiplier": 0.6,
    "position_embedding_type": "nope",
    "normalization_function": "rmsnorm",
    "init_method": "mup",
    "tie_word_embeddings": True,
}
_DENSE: dict[str, Any] = {
    **_GRANITE,
    "intermediate_size": 56,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "position_embedding_type": "rope",
    "layer_types": ["attention"] * 3,
}
_FACTORS: tuple[tuple[str, Any], ...] = (
    ("embedding_multiplier", 1.0),
    ("attention_multiplier", 0.1),
    ("residual_multiplier", 0.22),
    ("logits_scaling", 8.0),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "granite-4-small-like",
        _GRANITE,
        Native("GraniteMoeHybridForCausalLM"),
        (
            *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
            *MAMBA_FIELDS,
            *_FACTORS,
            ("mamba_n_heads", 12),
            ("mamba_d_head", 24),
            ("num_key_value_heads", 1),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("rope_theta", 700.0),
            ("layer_types", ["linear_attention", "mamba", "full_attention"]),
            ("layer_types", REMOVED),
            ("shared_intermediate_size", 64),
            ("num_local_experts", 7),
            ("num_local_experts", 0),
            ("num_experts_per_tok", 3),
            ("attention_bias", True),
            ("position_embedding_type", "rope"),
            ("position_embedding_type", REMOVED),
            ("init_method", "other"),
            ("tie_word_embeddings", False),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(
            *MAMBA_REJECTED,
            ("hidden_act", "gelu"),
            ("normalization_function", "layernorm"),
            ("position_embedding_type", "learned_absolute"),
        ),
    ),
    Variant(
        "granite-4-micro-like",
        _DENSE,
        Native("GraniteMoeHybridForCausalLM"),
        (
            *ROPE_FIELDS,
            ("hidden_size", 96),
            ("hidden_act", "gelu"),
            ("layer_types", ["attention", "mamba", "attention"]),
            ("layers_block_type", ["attention", "mamba", "attention"]),
        ),
        rejected=(("partial_rotary_factor", 0.5),),
    ),
    Variant(
        "granite-4-transformers-5-like",
        _GRANITE,
        Native("GraniteMoeHybridForCausalLM", without_limits, as_saved_by_transformers=True),
    ),
)
