"""OLMo: norms without weights (1), norms after each branch, and of whole queries and keys (2)."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_OLMO: dict[str, Any] = {**LLAMA, "attention_bias": False, "pad_token_id": None}
_OLMO_1: dict[str, Any] = {
    "architectures": ["OlmoForCausalLM"],
    "model_type": "olmo",
    **{name: value for name, value in _OLMO.items() if name != "rms_norm_eps"},
    "clip_qkv": 0.8,
}
_OLMO_2 = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", **_OLMO}
_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "attention_factor": 1.2079,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_OLMO_3 = {
    "architectures": ["Olmo3ForCausalLM"],
    "model_type": "olmo3",
    **_OLMO,
    "num_hidden_layers": 4,
    "rope_theta": 5000.0,
    "rope_scaling": _YARN,
    "sliding_window": 7,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 6),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("attention_bias", True),
    ("tie_word_embeddings", True),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "olmo-1-like",
        _OLMO_1,
        Native("OlmoForCausalLM"),
        (
            *SIZE_FIELDS,
            *ROPE_FIELDS,
            ("num_key_value_heads", 6),
            ("num_key_value_heads", None),
            ("head_dim", 16),
            ("hidden_act", "gelu"),
            ("clip_qkv", 0.3),
            ("clip_qkv", None),
            ("clip_qkv", REMOVED),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(("mlp_bias", True), ("partial_rotary_factor", 0.5)),
    ),
    Variant(
        "olmo-2-like",
        _OLMO_2,
        Native("Olmo2ForCausalLM"),
        (*_FIELDS, ("rope_scaling", {"rope_type": "linear", "factor": 4.0})),
    ),
    Variant(
        "olmo-3-like",
        _OLMO_3,
        Native("Olmo3ForCausalLM"),
        (
            *_FIELDS,
            ("rope_scaling", REMOVED),
            ("rope_scaling", {**_YARN, "factor": 4.0}),
            ("rope_scaling", {**_YARN, "attention_factor": None}),
            ("sliding_window", 5),
            ("layer_types", ["full_attention", "sliding_attention"] * 2),
        ),
    ),
    Variant(
        "olmo-3-transformers-5-like",
        _OLMO_3,
        Native("Olmo3ForCausalLM", as_saved_by_transformers=True),
    ),
)
