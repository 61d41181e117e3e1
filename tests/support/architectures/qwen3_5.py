"""Qwen3.5 and Qwen3.5 MoE, alone and as the text parts of models for text and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.architectures.qwen3_next import (
    FULL,
    HYBRID,
    HYBRID_FIELDS,
    LINEAR,
    REMOVED_HEADS,
    TokenByToken,
    prediction_module,
)
from support.architectures.variant import REMOVED, Variant
from support.architectures.wrapped import Wrapped, text_sweep

# The axes take turns on the pairs of a head, and time has the others.
_ROPE: dict[str, Any] = {
    "mrope_interleaved": True,
    "mrope_section": [1, 1, 0],
    "partial_rotary_factor": 0.25,
    "rope_theta": 5000.0,
    "rope_type": "default",
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_SHARED: dict[str, Any] = {
    **{name: value for name, value in HYBRID.items() if name != "rope_theta"},
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "rope_parameters": _ROPE,
}
_TEXT: dict[str, Any] = {"model_type": "qwen3_5_text", **_SHARED}
_MOE_TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    **{name: value for name, value in _SHARED.items() if name != "intermediate_size"},
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
_SWEEP: tuple[tuple[str, Any], ...] = (
    *HYBRID_FIELDS,
    ("mamba_ssm_dtype", "bfloat16"),
    ("mtp_num_hidden_layers", 2),
    ("mtp_use_dedicated_embeddings", True),
    ("rope_parameters", REMOVED),
    ("rope_parameters", {**_ROPE, "rope_theta": 700.0}),
    ("rope_parameters", {**_ROPE, "partial_rotary_factor": 0.5}),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 700.0}),
    ("rope_parameters", {**_ROPE, "mrope_section": [2, 2, 2]}),
    ("rope_parameters", {**_ROPE, **_YARN}),
)
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("attn_output_gate", False),
    ("hidden_act", "gelu"),
    ("layer_types", [FULL, LINEAR, "sliding_attention"]),
)
_DENSE_SWEEP = (*_SWEEP, *REMOVED_HEADS, ("intermediate_size", 88), ("mlp_only_layers", [1]))
_MOE_SWEEP = (
    *_SWEEP,
    ("moe_intermediate_size", 48),
    ("shared_expert_intermediate_size", 64),
    ("num_experts", 7),
    ("num_experts_per_tok", 3),
    ("moe_intermediate_size", REMOVED),
    ("shared_expert_intermediate_size", REMOVED),
)
_MOE_REJECTED = (
    *_REJECTED,
    ("norm_topk_prob", False),
    ("mlp_only_layers", [1]),
    ("decoder_sparse_step", 2),
)
_VISION = "model.visual.merger.norm.weight"
_PREFIXES = {"model.": "model.language_model."}
_DENSE = TokenByToken("Qwen3_5ForCausalLM", ignored=prediction_module)
_MOE = TokenByToken("Qwen3_5MoeForCausalLM", ignored=prediction_module)
_MTP = ("mtp.norm.weight", "mtp.fc.weight")


def _whole(architecture: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a model for text and images."""
    return {
        "architectures": [architecture],
        "model_type": str(text["model_type"]).removesuffix("_text"),
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"hidden_size": 24},
    }


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "qwen3.5-like",
        _whole("Qwen3_5ForConditionalGeneration", _TEXT),
        Wrapped(_DENSE, _PREFIXES, _VISION),
        (("tie_word_embeddings", True), *text_sweep(_TEXT, _DENSE_SWEEP)),
        text_sweep(_TEXT, _REJECTED),
        without_effect=(_VISION, *_MTP),
    ),
    Variant(
        "qwen3.5-text-like",
        {"architectures": ["Qwen3_5ForCausalLM"], **_TEXT},
        _DENSE,
        _DENSE_SWEEP,
        _REJECTED,
        without_effect=_MTP,
    ),
    Variant(
        "qwen3.5-moe-like",
        _whole("Qwen3_5MoeForConditionalGeneration", _MOE_TEXT),
        Wrapped(_MOE, _PREFIXES, _VISION),
        (("tie_word_embeddings", True), *text_sweep(_MOE_TEXT, _MOE_SWEEP)),
        text_sweep(_MOE_TEXT, _MOE_REJECTED),
        without_effect=(_VISION, *_MTP),
    ),
    Variant(
        "qwen3.5-moe-text-like",
        {"architectures": ["Qwen3_5MoeForCausalLM"], **_MOE_TEXT},
        _MOE,
        _MOE_SWEEP,
        _MOE_REJECTED,
        without_effect=_MTP,
    ),
    Variant(
        "qwen3.5-moe-transformers-5-like",
        {"architectures": ["Qwen3_5MoeForCausalLM"], **_MOE_TEXT},
        TokenByToken("Qwen3_5MoeForCausalLM", as_saved_by_transformers=True),
    ),
)
