"""Apertus: xIELU, whose numbers are in the checkpoint, and norms of each query and key head."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_APERTUS: dict[str, Any] = {
    "architectures": ["ApertusForCausalLM"],
    "model_type": "apertus",
    **LLAMA,
    "attention_bias": False,
    "hidden_act": "xielu",
    "mlp_bias": False,
    "post_norm": False,
    "qk_norm": True,
    "rope_scaling": _SCALING,
}
# Published ones are -1e-6: the number bounds rounding errors near 0.
_EPS = (".act_fn.eps",)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "apertus-like",
        _APERTUS,
        Native("ApertusForCausalLM"),
        (
            *SIZE_FIELDS,
            *(field for field in ROPE_FIELDS if field[0] == "rope_theta"),
            ("rope_scaling", {**_SCALING, "factor": 2.0}),
            ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
            ("num_key_value_heads", 1),
            ("num_key_value_heads", None),
            ("head_dim", 16),
            ("hidden_act", REMOVED),
            ("hidden_act", "relu2"),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        (
            ("mlp_bias", True),
            ("partial_rotary_factor", 0.5),
            ("post_norm", True),
            ("qk_norm", False),
            ("rope_scaling", REMOVED),  # rope_theta without rope_scaling
        ),
        without_effect=_EPS,
    ),
    Variant(
        "apertus-defaults-like",
        {
            name: value
            for name, value in _APERTUS.items()
            if name not in ("rope_scaling", "rope_theta")
        },
        Native("ApertusForCausalLM", as_saved_by_transformers=True),
        without_effect=_EPS,
    ),
)
