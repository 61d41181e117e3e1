"""Phi 1 and 2, Phi 3 with long rope, and Phi 4 mini, which rotates a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS, SIZES
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_PHI = {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    **SIZES,
    "hidden_size": 120,
    "num_key_value_heads": 6,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.4,
    "qk_layernorm": False,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
_PHI_3 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    **LLAMA,
    "attention_bias": False,
    "original_max_position_embeddings": 256,
    "rope_scaling": None,
    "sliding_window": 7,
    "pad_token_id": None,
}


def long_rope(num_factors: int, kind: str = "longrope") -> dict[str, Any]:
    """`rope_scaling` as Phi publishes it, with a factor for each rotated pair of dimensions."""
    return {
        "type": kind,
        "short_factor": [1.0 + 0.05 * pair for pair in range(num_factors)],
        "long_factor": [1.5 + 0.9 * pair for pair in range(num_factors)],
    }


def _with_long_rope_named(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers 5.23 no longer reads "su", the first published name of long rope."""
    scaling = config.get("rope_scaling")
    if not scaling or scaling.get("type") not in ("su", "yarn"):
        return dict(config)
    return {**config, "rope_scaling": {**scaling, "type": "longrope"}}


_PHI_3_LAYOUT = Native("Phi3ForCausalLM", _with_long_rope_named)
_LONG = {"original_max_position_embeddings": 32, "rope_scaling": long_rope(6)}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "phi-2-like",
        _PHI,
        Native("PhiForCausalLM"),
        (
            *SIZE_FIELDS,
            ("num_key_value_heads", 2),
            ("hidden_act", "gelu"),
            ("layer_norm_eps", 0.3),
            ("partial_rotary_factor", 0.6),
            ("partial_rotary_factor", REMOVED),
            ("qk_layernorm", True),
            ("rope_theta", 700.0),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "phi-1.5-like",
        {**_PHI, "partial_rotary_factor": 0.5, "qk_layernorm": True},
        Native("PhiForCausalLM"),
    ),
    Variant(
        "phi-transformers-5-like", _PHI, Native("PhiForCausalLM", as_saved_by_transformers=True)
    ),
    Variant(
        "phi-3-mini-4k-like",
        {**_PHI_3, "num_key_value_heads": 6},
        _PHI_3_LAYOUT,
        (
            *SIZE_FIELDS,
            ("num_key_value_heads", 2),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("rope_theta", 700.0),
            ("sliding_window", None),
            ("sliding_window", 5),
            ("tie_word_embeddings", True),
            ("partial_rotary_factor", 0.5),
        ),
        rejected=(("attention_bias", True),),
    ),
    Variant(
        "phi-3-mini-128k-like",
        {**_PHI_3, **_LONG, "sliding_window": None},
        _PHI_3_LAYOUT,
        (
            ("rope_scaling", long_rope(6, "su")),
            ("rope_scaling", {**long_rope(6), "attention_factor": 1.3}),
            ("original_max_position_embeddings", 64),
            ("max_position_embeddings", 512),
        ),
    ),
    Variant(
        "phi-3-medium-128k-like",
        {**_PHI_3, **_LONG, "rope_scaling": long_rope(6, "su"), "sliding_window": 11},
        _PHI_3_LAYOUT,
    ),
    Variant(
        "phi-4-mini-like",
        {
            **_PHI_3,
            **_LONG,
            "hidden_size": 96,
            "partial_rotary_factor": 0.75,
            "sliding_window": None,
            "tie_word_embeddings": True,
        },
        _PHI_3_LAYOUT,
    ),
    Variant(
        "phi-3-transformers-5-like",
        {**_PHI_3, **_LONG},
        Native("Phi3ForCausalLM", as_saved_by_transformers=True),
    ),
)
