"""Code World Model: windows in three of four layers, and Llama 3's scaling by default."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_SLIDING, _FULL = "sliding_attention", "full_attention"
_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_CWM: dict[str, Any] = {
    "architectures": ["CwmForCausalLM"],
    "model_type": "cwm",
    **LLAMA,
    "head_dim": 20,
    "layer_types": [_FULL, _SLIDING, _SLIDING],
    "mlp_bias": False,
    "num_hidden_layers": 3,
    "rope_scaling": _SCALING,
    "sliding_window": 7,
}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "cwm-like",
        _CWM,
        Native("CwmForCausalLM"),
        (
            *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
            *(field for field in ROPE_FIELDS if field[0] == "rope_theta"),
            ("rope_scaling", {**_SCALING, "factor": 2.0}),
            ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
            ("num_key_value_heads", 1),
            ("head_dim", 16),
            ("head_dim", REMOVED),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("mlp_bias", True),
            ("mlp_bias", REMOVED),
            ("layer_types", [_SLIDING, _SLIDING, _FULL]),
            ("layer_types", REMOVED),
            ("sliding_window", 5),
            ("sliding_window", REMOVED),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(
            ("attention_bias", True),
            ("partial_rotary_factor", 0.5),
            ("rope_scaling", REMOVED),  # rope_theta without rope_scaling
        ),
    ),
    Variant(
        "cwm-defaults-like",
        {
            name: value
            for name, value in _CWM.items()
            if name not in ("layer_types", "rope_scaling", "rope_theta")
        },
        Native("CwmForCausalLM"),
        (("num_hidden_layers", 6), ("rope_theta", 1e6)),
    ),
    Variant(
        "cwm-transformers-5-like", _CWM, Native("CwmForCausalLM", as_saved_by_transformers=True)
    ),
)
