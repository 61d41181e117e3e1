"""Nemotron-H: one block in each layer."""

from __future__ import annotations

from typing import Any

from support.architectures.granite_hybrid import without_limits
from support.architectures.llama import SIZES
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_NEMOTRON_H: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    **SIZES,
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "M-*M-",
    "head_dim": 20,
    "layer_norm_epsilon": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "use_bias": False,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "n_groups": 2,
    "ssm_state_size": 20,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "chunk_size": 16,
    "expand": 2,
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "residual_in_fp32": False,
    "num_logits_to_keep": 1,
    "sliding_window": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_SAVED = {
    name: value
    for name, value in _NEMOTRON_H.items()
    if name not in ("num_hidden_layers", "hybrid_override_pattern")
}
_SAVED["layers_block_type"] = ["linear_attention", "mlp", "full_attention", "mlp"]

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "nemotron-h-like",
        _NEMOTRON_H,
        Native("NemotronHForCausalLM"),
        (
            ("hidden_size", 96),
            ("intermediate_size", 88),
            ("num_hidden_layers", REMOVED),
            ("num_attention_heads", 12),
            ("num_key_value_heads", 1),
            ("vocab_size", 400),
            ("max_position_embeddings", 128),
            ("hybrid_override_pattern", "-M*-M"),
            ("layers_block_type", ["mamba", "mlp", "attention", "mamba", "mamba"]),
            ("head_dim", 16),
            ("head_dim", REMOVED),
            ("layer_norm_epsilon", 0.3),
            ("layer_norm_epsilon", REMOVED),
            ("mlp_bias", True),
            ("mlp_hidden_act", "silu"),
            ("mlp_hidden_act", REMOVED),
            ("use_bias", True),
            ("mamba_num_heads", 4),
            ("mamba_head_dim", 24),
            ("mamba_head_dim", REMOVED),
            ("n_groups", 1),
            ("n_groups", 3),
            ("mamba_n_groups", 3),
            ("ssm_state_size", 24),
            ("ssm_state_size", REMOVED),
            ("conv_kernel", 2),
            ("conv_kernel", REMOVED),
            ("mamba_d_conv", 3),
            ("use_conv_bias", False),
            ("mamba_conv_bias", False),
            ("chunk_size", 8),
            ("expand", 3),
            ("time_step_min", 0.7),
            ("time_step_min", REMOVED),
            ("mamba_dt_min", 0.7),
            ("time_step_max", 0.7),
            ("residual_in_fp32", True),
            ("num_logits_to_keep", 5),
        ),
        rejected=(
            ("num_hidden_layers", 4),
            ("hybrid_override_pattern", "M-*ME"),
            ("attention_bias", True),
            ("mamba_proj_bias", True),
            ("mamba_hidden_act", "gelu"),
            ("conv_kernel", 1),
            ("sliding_window", 7),
            ("time_step_limit", [0.0, 0.1]),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "nemotron-h-transformers-5-like",
        _SAVED,
        Native("NemotronHForCausalLM", without_limits, as_saved_by_transformers=True),
    ),
)
