"""Falcon-H1: attention and Mamba 2 side by side."""

from __future__ import annotations

from typing import Any

from support.architectures.granite_hybrid import (
    MAMBA,
    MAMBA_FIELDS,
    MAMBA_REJECTED,
    without_limits,
)
from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_FALCON_H1: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "model_type": "falcon_h1",
    **LLAMA,
    **MAMBA,
    "head_dim": 20,
    "attention_bias": False,
    "mlp_bias": False,
    "projectors_bias": False,
    "attn_layer_indices": None,
    "mamba_d_head": 16,
    "mamba_d_ssm": 96,
    "mamba_norm_before_gate": False,
    "mamba_rms_norm": False,
    "mamba_use_mlp": True,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.9,
    "key_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.6,
    "mlp_multipliers": [0.9, 0.6],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.7, 0.8, 0.9, 1.1, 0.6],
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
}
_ONES = {
    name: 1.0
    for name in _FALCON_H1
    if name.endswith("_multiplier") and name != "embedding_multiplier"
}
_NORMED: dict[str, Any] = {
    **_FALCON_H1,
    **_ONES,
    "mamba_rms_norm": True,
    "mamba_d_head": "auto",
    "mamba_proj_bias": True,
    "attention_bias": True,
}
_FACTORS: tuple[tuple[str, Any], ...] = tuple(
    (name, value) for name in _FALCON_H1 for value in (1.3, REMOVED) if name.endswith("_multiplier")
)
# The factors on inputs do not apply to biases.
_BIASES = ("mamba_proj_bias", "attention_bias")

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "falcon-h1-like",
        _FALCON_H1,
        Native("FalconH1ForCausalLM"),
        (
            *SIZE_FIELDS,
            *ROPE_FIELDS,
            *_FACTORS,
            *(field for field in MAMBA_FIELDS if field != ("mamba_proj_bias", True)),
            ("mamba_expand", 3),
            ("mamba_rms_norm", True),
            ("mamba_rms_norm", REMOVED),
            ("mamba_norm_before_gate", True),
            ("num_key_value_heads", 1),
            ("head_dim", 16),
            ("head_dim", REMOVED),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("mlp_bias", True),
            ("projectors_bias", True),
            ("projectors_bias", REMOVED),
            ("mlp_multipliers", [1.0, 1.2]),
            ("mlp_multipliers", REMOVED),
            ("ssm_multipliers", [1.0, 1.0, 0.7, 1.0, 1.4]),
            ("ssm_multipliers", REMOVED),
            ("num_logits_to_keep", 5),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(
            *MAMBA_REJECTED,
            *((name, True) for name in _BIASES),
            ("hidden_act", "gelu"),
            ("mamba_use_mlp", False),
            ("attn_layer_indices", [1]),
            ("partial_rotary_factor", 0.5),
        ),
    ),
    Variant(
        "falcon-h1-normed-like",
        _NORMED,
        Native("FalconH1ForCausalLM"),
        (
            ("mamba_d_ssm", 120),
            ("mamba_d_ssm", None),
            ("mamba_n_heads", 12),
            ("mamba_n_groups", 3),
            ("mamba_norm_before_gate", True),
            ("mamba_norm_before_gate", REMOVED),
            *((name, False) for name in _BIASES),
        ),
    ),
    Variant(
        "falcon-h1-transformers-5-like",
        _FALCON_H1,
        Native("FalconH1ForCausalLM", without_limits, as_saved_by_transformers=True),
    ),
)
