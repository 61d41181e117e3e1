"""Command R: one norm for both branches, interleaved rotary positions, scaled logits."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_COHERE: dict[str, Any] = {
    **{name: value for name, value in LLAMA.items() if name != "rms_norm_eps"},
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.4,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
_COMMAND_R = {"architectures": ["CohereForCausalLM"], "model_type": "cohere", **_COHERE}
_COMMAND_R7B = {
    "architectures": ["Cohere2ForCausalLM"],
    "model_type": "cohere2",
    **_COHERE,
    "num_hidden_layers": 4,
    "sliding_window": 7,
    "sliding_window_pattern": 3,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 1),
    ("hidden_act", "gelu"),
    ("layer_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("logit_scale", 1.0),
    ("logit_scale", REMOVED),
    ("attention_bias", True),
    ("tie_word_embeddings", False),
)
# The softmax cancels a key's bias where the key is not rotated: in the layers without a window.
_COHERE_2_KEY_BIASES = ("layers.2.self_attn.k_proj.bias",)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "command-r-like",
        {**_COMMAND_R, "num_key_value_heads": 6},
        Native("CohereForCausalLM"),
        (*_FIELDS, ("use_qk_norm", True), ("rope_theta", REMOVED)),
    ),
    Variant(
        "command-r-plus-like",
        {**_COMMAND_R, "use_qk_norm": True},
        Native("CohereForCausalLM"),
    ),
    Variant(
        "command-r7b-like",
        _COMMAND_R7B,
        Native("Cohere2ForCausalLM"),
        (
            *_FIELDS,
            ("sliding_window", 5),
            ("sliding_window_pattern", 2),
            ("sliding_window_pattern", REMOVED),
            ("layer_types", ["full_attention", "sliding_attention"] * 2),
        ),
    ),
    Variant(
        "command-r7b-transformers-5-like",
        {**_COMMAND_R7B, "attention_bias": True},
        Native("Cohere2ForCausalLM", as_saved_by_transformers=True),
        without_effect=_COHERE_2_KEY_BIASES,
    ),
)
