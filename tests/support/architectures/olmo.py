"""OLMo: norms after each branch, and norms of whole query and key projections."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_OLMO: dict[str, Any] = {**LLAMA, "attention_bias": False, "pad_token_id": None}
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
