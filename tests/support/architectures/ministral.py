"""Ministral 3, alone and wrapped, and the wrapped Mistral of Mistral Small 3.1."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import Variant
from support.architectures.wrapped import Wrapped

_ROPE: dict[str, Any] = {
    "type": "yarn",
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 12,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
_TEXT: dict[str, Any] = {
    "model_type": "ministral3",
    **{name: value for name, value in LLAMA.items() if name != "rope_theta"},
    "head_dim": 20,
    "rope_parameters": _ROPE,
    "sliding_window": None,
    "pad_token_id": None,
}
_WRAPPED: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": _TEXT,
    "vision_config": {"model_type": "pixtral", "hidden_size": 24},
}
_MISTRAL_TEXT: dict[str, Any] = {
    "model_type": "mistral",
    **LLAMA,
    "head_dim": 20,
    "sliding_window": None,
}
_VISION = ("vision_tower.post_layernorm.weight",)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "ministral-3-text-like",
        {"architectures": ["Ministral3ForCausalLM"], **_TEXT},
        Native("Ministral3ForCausalLM"),
        (
            *SIZE_FIELDS,
            ("num_key_value_heads", 1),
            ("head_dim", 16),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("sliding_window", 7),
            ("tie_word_embeddings", True),
            ("rope_parameters", {**_ROPE, "rope_theta": 700.0}),
            ("rope_parameters", {**_ROPE, "factor": 3.0}),
            ("rope_parameters", {**_ROPE, "mscale": 0.5}),
            ("rope_parameters", {**_ROPE, "beta_fast": 32.0}),
            ("rope_parameters", {**_ROPE, "original_max_position_embeddings": 24}),
            ("rope_parameters", {**_ROPE, "llama_4_scaling_beta": 0.1}),
        ),
    ),
    Variant(
        "ministral-3-like",
        _WRAPPED,
        Wrapped(
            Native("Ministral3ForCausalLM"),
            {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        ),
        without_effect=_VISION,
    ),
    Variant(
        "ministral-3-transformers-5-like",
        _WRAPPED,
        Wrapped(
            Native("Ministral3ForCausalLM", as_saved_by_transformers=True),
            {"model.": "model.language_model."},
            vision="model.vision_tower.post_layernorm.weight",
        ),
        without_effect=_VISION,
    ),
    Variant(
        "mistral-small-3.1-like",
        {**_WRAPPED, "text_config": _MISTRAL_TEXT},
        Wrapped(
            Native("MistralForCausalLM"),
            {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        ),
        without_effect=_VISION,
    ),
)
