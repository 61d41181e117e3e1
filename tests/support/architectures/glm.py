"""GLM 4: interleaved rotary positions on a part of each head, and sandwich norms (GLM 4 0414)."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_GLM: dict[str, Any] = {
    **LLAMA,
    "rms_norm_eps": 1.5625e-07,
    "head_dim": 20,
    "attention_bias": True,
    "partial_rotary_factor": 0.6,
    "pad_token_id": None,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 1),
    ("head_dim", 16),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
    ("partial_rotary_factor", 1.0),
    ("partial_rotary_factor", REMOVED),
    ("attention_bias", False),
    ("attention_bias", REMOVED),
    ("tie_word_embeddings", True),
)
_GLM_9B = {"architectures": ["GlmForCausalLM"], "model_type": "glm", **_GLM}
_GLM_0414 = {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", **_GLM}

VARIANTS: tuple[Variant, ...] = (
    Variant("glm-4-9b-like", _GLM_9B, Native("GlmForCausalLM"), _FIELDS),
    Variant(
        "glm-transformers-5-like", _GLM_9B, Native("GlmForCausalLM", as_saved_by_transformers=True)
    ),
    Variant("glm-4-0414-like", _GLM_0414, Native("Glm4ForCausalLM"), _FIELDS),
    Variant(
        "glm-4-0414-unbiased-like",
        {**_GLM_0414, "attention_bias": False},
        Native("Glm4ForCausalLM"),
    ),
)
