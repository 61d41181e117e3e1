"""Helium 1: interleaved rotary pairs, and no bias of the output projection."""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_HELIUM: dict[str, Any] = {
    "architectures": ["HeliumForCausalLM"],
    "model_type": "helium",
    **LLAMA,
    "attention_bias": False,
    "head_dim": 12,
    "mlp_bias": False,
    "pad_token_id": None,
    "rms_norm_eps": 1e-8,
}
_HEADS = "num_attention_heads"

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "helium-1-like",
        _HELIUM,
        Native("HeliumForCausalLM"),
        (
            *(field for field in SIZE_FIELDS if field[0] not in ("hidden_size", _HEADS)),
            *ROPE_FIELDS,
            ("num_key_value_heads", 1),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("attention_bias", True),
            ("attention_bias", REMOVED),
            ("mlp_bias", True),
            ("mlp_bias", REMOVED),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(
            ("partial_rotary_factor", 0.5),
            # The output projection has hidden_size columns.
            ("hidden_size", 96),
            ("head_dim", 16),
            (_HEADS, 12),
        ),
    ),
    Variant(
        "helium-wide-like",
        {**_HELIUM, "hidden_size": 256, _HEADS: 2, "num_key_value_heads": 1, "head_dim": 128},
        Native("HeliumForCausalLM"),
        (("head_dim", REMOVED),),
    ),
)
