"""Bamba: attention in few layers, Mamba 2 in the others."""

from __future__ import annotations

from typing import Any

from support.architectures.granite_hybrid import (
    MAMBA,
    MAMBA_FIELDS,
    MAMBA_REJECTED,
    without_limits,
)
from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_BAMBA: dict[str, Any] = {
    "architectures": ["BambaForCausalLM"],
    "model_type": "bamba",
    **LLAMA,
    **MAMBA,
    "num_hidden_layers": 3,
    "mamba_d_head": "auto",
    "attn_layer_indices": [1],
    "attention_bias": False,
    "mlp_bias": False,
    "num_logits_to_keep": 1,
    "pad_token_id": 0,
}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "bamba-like",
        _BAMBA,
        Native("BambaForCausalLM"),
        (
            *(field for field in SIZE_FIELDS if field[0] != "num_attention_heads"),
            *ROPE_FIELDS,
            *MAMBA_FIELDS,
            ("num_hidden_layers", 4),
            ("num_attention_heads", 18),
            ("num_key_value_heads", 1),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("mamba_n_heads", 12),
            ("mamba_d_head", 24),
            ("mamba_expand", 3),
            ("attn_layer_indices", [0, 2]),
            ("attn_layer_indices", [0, 1, 2]),
            ("attn_layer_indices", REMOVED),
            ("attention_bias", True),
            ("mlp_bias", True),
            ("num_logits_to_keep", 5),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(*MAMBA_REJECTED, ("hidden_act", "gelu"), ("partial_rotary_factor", 1.0)),
    ),
    Variant(
        "bamba-transformers-5-like",
        {**_BAMBA, "mamba_d_head": 24},
        Native("BambaForCausalLM", without_limits, as_saved_by_transformers=True),
    ),
)
