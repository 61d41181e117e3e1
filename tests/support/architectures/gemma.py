"""Gemma 1 to 3, VaultGemma: norms of 1 + weight, scaled embeddings, caps and windows."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import SIZE_FIELDS, SIZES
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant
from support.architectures.wrapped import Wrapped

_GEMMA: dict[str, Any] = {
    **SIZES,
    "head_dim": 20,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "pad_token_id": None,
}
_GEMMA_1 = {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    **_GEMMA,
    "hidden_act": "gelu",
}
_GEMMA_2 = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    **_GEMMA,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 31,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.5,
    "sliding_window": 7,
}
_VAULTGEMMA = {**_GEMMA_2, "architectures": ["VaultGemmaForCausalLM"], "model_type": "vaultgemma"}
_GEMMA_3_TEXT = {
    "model_type": "gemma3_text",
    **_GEMMA,
    "num_hidden_layers": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 31,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window": 7,
    "sliding_window_pattern": 3,
    "rope_theta": 50000.0,
    "rope_local_base_freq": 700.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
_GEMMA_3 = {"architectures": ["Gemma3ForCausalLM"], **_GEMMA_3_TEXT}

_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 1),
    ("head_dim", 12),
    ("head_dim", 16),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("attention_bias", True),
    ("tie_word_embeddings", True),
)
_GEMMA_2_FIELDS: tuple[tuple[str, Any], ...] = (
    *_FIELDS,
    ("hidden_activation", "gelu"),
    ("hidden_activation", "silu"),
    ("query_pre_attn_scalar", 5),
    ("attn_logit_softcapping", 3.0),
    ("attn_logit_softcapping", None),
    ("final_logit_softcapping", 5.0),
    ("final_logit_softcapping", None),
    ("sliding_window", 5),
    ("layer_types", ["full_attention", "sliding_attention"]),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "gemma-7b-like",
        {**_GEMMA_1, "num_key_value_heads": 6},
        Native("GemmaForCausalLM"),
        (*_FIELDS, ("hidden_act", "gelu_pytorch_tanh"), ("hidden_act", "silu")),
    ),
    Variant(
        "gemma-2b-like",
        {**_GEMMA_1, "num_key_value_heads": 1, "hidden_activation": "gelu_pytorch_tanh"},
        Native("GemmaForCausalLM"),
        (("hidden_activation", REMOVED),),
    ),
    Variant("gemma-2-like", _GEMMA_2, Native("Gemma2ForCausalLM"), _GEMMA_2_FIELDS),
    Variant(
        "gemma-2-transformers-5-like",
        _GEMMA_2,
        Native("Gemma2ForCausalLM", as_saved_by_transformers=True),
    ),
    Variant("vaultgemma-like", _VAULTGEMMA, Native("VaultGemmaForCausalLM"), _GEMMA_2_FIELDS),
    Variant(
        "vaultgemma-transformers-5-like",
        _VAULTGEMMA,
        Native("VaultGemmaForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "gemma-3-1b-like",
        {**_GEMMA_3, "num_key_value_heads": 1, "rope_scaling": None},
        Native("Gemma3ForCausalLM"),
    ),
    Variant(
        "gemma-3-4b-text-like",
        _GEMMA_3,
        Native("Gemma3ForCausalLM"),
        (
            *_FIELDS,
            ("hidden_activation", "gelu"),
            ("query_pre_attn_scalar", 5),
            ("final_logit_softcapping", 5.0),
            ("attn_logit_softcapping", 1.5),
            ("sliding_window", 5),
            ("sliding_window_pattern", 2),
            ("sliding_window_pattern", REMOVED),
            ("rope_local_base_freq", 99.0),
            ("rope_local_base_freq", REMOVED),
            ("rope_scaling", REMOVED),
            ("rope_theta", REMOVED),
        ),
    ),
    Variant(
        "gemma-3-transformers-5-like",
        _GEMMA_3,
        Native("Gemma3ForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "gemma-3-4b-like",
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": _GEMMA_3_TEXT,
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 24},
        },
        Wrapped(Native("Gemma3ForCausalLM"), {"model.": "language_model.model."}),
        without_effect=("vision_tower.post_layernorm.weight",),
    ),
    Variant(
        "gemma-3-4b-transformers-5-like",
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": _GEMMA_3_TEXT,
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 24},
        },
        Wrapped(
            Native("Gemma3ForCausalLM", as_saved_by_transformers=True),
            {"model.": "model.language_model."},
            vision="model.vision_tower.post_layernorm.weight",
        ),
        without_effect=("vision_tower.post_layernorm.weight",),
    ),
)
