"""MiniCPM, computed by Granite, which has the same factors, and MiniCPM 3.

Sources: modeling_minicpm.py of openbmb/MiniCPM-2B-sft-bf16 and openbmb/MiniCPM4-8B, and vLLM 0.6's
vllm/model_executor/models/minicpm.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from support.architectures.llama import LLAMA, LLAMA_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_FACTORS: dict[str, Any] = {"scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 40}
_LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.05 * pair for pair in range(6)],
    "long_factor": [1.5 + 0.9 * pair for pair in range(6)],
    "original_max_position_embeddings": 32,
}
_MINICPM: dict[str, Any] = {
    "architectures": ["MiniCPMForCausalLM"],
    "model_type": "minicpm",
    **LLAMA,
    **_FACTORS,
    "tie_word_embeddings": True,
}
_MINICPM_3: dict[str, Any] = {
    **_MINICPM,
    "architectures": ["MiniCPM3ForCausalLM"],
    "model_type": "minicpm3",
    "num_key_value_heads": 6,
    "q_lora_rank": 28,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "attention_bias": False,
}


def _as_granite(config: Mapping[str, Any]) -> dict[str, Any]:
    hidden_size, num_layers = config["hidden_size"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or hidden_size // config["num_attention_heads"]
    return {
        "tie_word_embeddings": True,
        **config,
        "model_type": "granite",
        "attention_multiplier": head_dim**-0.5,
        "embedding_multiplier": config.get("scale_emb", 1),
        "residual_multiplier": config.get("scale_depth", 1) / math.sqrt(num_layers),
        "logits_scaling": hidden_size / config.get("dim_model_base", 1),
    }


_FACTOR_FIELDS: tuple[tuple[str, Any], ...] = (
    ("scale_emb", 1),
    ("scale_emb", 12.5),
    ("scale_depth", 1.4),
    ("dim_model_base", 72),
    ("tie_word_embeddings", REMOVED),
    ("tie_word_embeddings", False),
)
# For configs without a factor, the published class and that of transformers have other numbers.
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("scale_emb", REMOVED),
    ("scale_depth", REMOVED),
    ("scale_depth", 0),
    ("dim_model_base", REMOVED),
    ("partial_rotary_factor", 0.5),
)
_GRANITE = Native("GraniteForCausalLM", _as_granite)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "minicpm-2b-like",
        {**_MINICPM, "num_key_value_heads": 6},
        _GRANITE,
        (*LLAMA_FIELDS, *_FACTOR_FIELDS, ("attention_bias", True)),
        rejected=(*_REJECTED, ("num_experts", 8)),
    ),
    Variant(
        "minicpm4-like",
        {**_MINICPM, "tie_word_embeddings": False, "rope_scaling": _LONG_ROPE},
        _GRANITE,
        (
            ("rope_scaling", {**_LONG_ROPE, "original_max_position_embeddings": 256}),
            ("rope_scaling", {**_LONG_ROPE, "long_factor": [2.0] * 6}),
        ),
        rejected=(("sparse_config", {"block_size": 64}),),
    ),
    Variant(
        "minicpm3-like",
        _MINICPM_3,
        Native("MiniCPM3ForCausalLM"),
        (
            *(field for field in SIZE_FIELDS if field[0] != "num_attention_heads"),
            *_FACTOR_FIELDS,
            ("q_lora_rank", None),
            ("kv_lora_rank", 32),
            ("qk_nope_head_dim", 20),
            ("qk_rope_head_dim", 4),
            ("v_head_dim", 10),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("rms_norm_eps", REMOVED),
            ("rope_theta", 700.0),
            ("rope_scaling", {**_LONG_ROPE, "short_factor": [1.5] * 4, "long_factor": [2.5] * 4}),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("attention_bias", True),
            ("mlp_bias", True),
            ("num_key_value_heads", None),
            ("q_lora_rank", REMOVED),
            ("kv_lora_rank", REMOVED),
            ("qk_nope_head_dim", REMOVED),
            ("qk_rope_head_dim", REMOVED),
        ),
        rejected=(*_REJECTED, ("num_attention_heads", 3), ("num_key_value_heads", 3)),
    ),
)
