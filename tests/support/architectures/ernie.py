"""ERNIE 4.5 0.3B: interleaved rotary pairs, and biases everywhere or nowhere."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_ERNIE_4_5: dict[str, Any] = {
    "architectures": ["Ernie4_5ForCausalLM"],
    "model_type": "ernie4_5",
    **LLAMA,
    "head_dim": 20,
    "use_bias": False,
    "tie_word_embeddings": True,
}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "ernie-4.5-like",
        _ERNIE_4_5,
        Native("Ernie4_5ForCausalLM"),
        (
            *SIZE_FIELDS,
            *ROPE_FIELDS,
            ("num_key_value_heads", 1),
            ("num_key_value_heads", None),
            ("head_dim", 16),
            ("head_dim", None),
            ("head_dim", REMOVED),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("use_bias", True),
            ("use_bias", REMOVED),
            ("tie_word_embeddings", False),
            ("tie_word_embeddings", REMOVED),
            ("compression_ratio", 1.0),
        ),
        rejected=(("compression_ratio", 2.0), ("partial_rotary_factor", 0.5)),
    ),
    Variant(
        "ernie-4.5-first-name-like",
        {**_ERNIE_4_5, "architectures": ["Ernie4_5_ForCausalLM"]},
        Native("Ernie4_5ForCausalLM"),
    ),
)
