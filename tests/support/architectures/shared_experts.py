"""Mixtures of experts that transformers has: most with experts that every token passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from support.architectures.latent import prediction_layers
from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Tensors, Variant

_ERNIE: dict[str, Any] = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    **LLAMA,
    "num_hidden_layers": 3,
    "use_bias": False,
    "moe_intermediate_size": 40,
    "moe_k": 3,
    "moe_num_experts": 8,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "num_nextn_predict_layers": 1,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}
_DOTS_1: dict[str, Any] = {
    "architectures": ["Dots1ForCausalLM"],
    "model_type": "dots1",
    **LLAMA,
    "num_hidden_layers": 3,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "max_window_layers": 3,
    "moe_intermediate_size": 40,
    "n_group": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.7,
    "scoring_func": "noaux_tc",
    "sliding_window": None,
    "topk_group": 1,
    "pad_token_id": None,
}
_GRANITE_SHARED: dict[str, Any] = {
    "architectures": ["GraniteMoeSharedForCausalLM"],
    "model_type": "granitemoeshared",
    **LLAMA,
    "attention_bias": False,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 56,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.7,
    "tie_word_embeddings": True,
}
_GLM_4_7_FLASH: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "model_type": "glm4_moe_lite",
    **LLAMA,
    "num_hidden_layers": 3,
    "num_key_value_heads": 6,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 40,
    "n_group": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 3,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0,
    "rope_scaling": None,
    "routed_scaling_factor": 1.7,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "pad_token_id": None,
}
_FLEX_OLMO: dict[str, Any] = {
    "architectures": ["FlexOlmoForCausalLM"],
    "model_type": "flex_olmo",
    **LLAMA,
    "intermediate_size": 40,
    "attention_bias": False,
    "norm_topk_prob": False,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    *ROPE_FIELDS,
    ("num_key_value_heads", 1),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rms_norm_eps", REMOVED),
    ("tie_word_embeddings", False),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", REMOVED),
)

# Latent attention has no fewer KV heads than heads, whose sizes do not depend on the hidden size.
_LATENT_HEADS = ("num_attention_heads", "num_key_value_heads")


@dataclass(frozen=True)
class _SmallBiases(Native):
    """Biases of routers below the probabilities, so that both have an effect on the choice."""

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        written, tensors = Native.random_checkpoint(self, config, seed)
        small = {
            name: tensor * 0.3 if name.endswith("e_score_correction_bias") else tensor
            for name, tensor in tensors.items()
        }
        return written, small


def _prediction_modules(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of ERNIE's modules that predict further tokens."""
    size = config["hidden_size"]
    return {
        "model.mtp_emb_norm.0.weight": torch.ones(size),
        "model.mtp_linear_proj.0.weight": torch.ones(size, 2 * size),
    }


def _stacked(variant: Variant) -> Variant:
    """The same checkpoint as transformers 5 saves its own form of it."""
    assert isinstance(variant.layout, Native)
    layout = replace(variant.layout, as_saved_by_transformers=True)
    name = variant.name.removesuffix("-like") + "-stacked-like"
    return replace(variant, name=name, layout=layout, fields=(), rejected=())


_AS_PUBLISHED: tuple[Variant, ...] = (
    Variant(
        "ernie-4.5-moe-like",
        _ERNIE,
        _SmallBiases("Ernie4_5_MoeForCausalLM", ignored=_prediction_modules),
        (
            *_FIELDS,
            ("head_dim", 20),
            ("use_bias", True),
            ("use_bias", REMOVED),
            ("moe_intermediate_size", 48),
            ("moe_k", 1),
            ("moe_k", 2),
            ("moe_k", REMOVED),
            ("moe_num_experts", 7),
            ("moe_num_shared_experts", 0),
            ("moe_num_shared_experts", 1),
            ("moe_num_shared_experts", REMOVED),
            ("moe_layer_start_index", 0),
            ("moe_layer_start_index", 2),
            ("moe_layer_start_index", 3),
            ("moe_layer_start_index", REMOVED),
            ("moe_layer_end_index", 1),
            ("moe_layer_end_index", REMOVED),
            ("moe_layer_interval", 2),
            ("moe_layer_interval", REMOVED),
            ("num_nextn_predict_layers", 0),
        ),
        rejected=(("moe_norm_min", 0.5), ("compression_ratio", 2.0)),
        without_effect=(".mtp_emb_norm.0.weight", ".mtp_linear_proj.0.weight"),
    ),
    Variant(
        "dots1-like",
        _DOTS_1,
        Native("Dots1ForCausalLM"),
        (
            *_FIELDS,
            ("head_dim", 20),
            ("attention_bias", True),
            ("first_k_dense_replace", 0),
            ("first_k_dense_replace", 3),
            ("first_k_dense_replace", REMOVED),
            ("max_window_layers", 0),
            ("sliding_window", 7),
            ("sliding_window", REMOVED),
            ("moe_intermediate_size", 48),
            ("n_group", 3),
            ("n_routed_experts", 4),
            ("n_shared_experts", 1),
            ("norm_topk_prob", False),
            ("norm_topk_prob", REMOVED),
            ("num_experts_per_tok", 1),
            ("num_experts_per_tok", 3),
            ("routed_scaling_factor", REMOVED),
            ("scoring_func", REMOVED),
            ("scoring_func", "sigmoid"),
        ),
        rejected=(
            ("scoring_func", "softmax"),
            ("topk_method", "greedy"),
            ("moe_layer_freq", 2),
            ("topk_group", 2),  # of 1 group
        ),
    ),
    Variant(
        "dots1-window-like",
        {
            **_DOTS_1,
            "sliding_window": 7,
            "max_window_layers": 1,
            "n_group": 2,
            "topk_group": 2,
            "num_experts_per_tok": 3,
        },
        Native("Dots1ForCausalLM"),
        (
            ("sliding_window", 5),
            ("max_window_layers", 2),
            ("layer_types", ["sliding_attention", "full_attention", "full_attention"]),
            ("topk_group", 1),
        ),
    ),
    Variant(
        "granite-moe-shared-like",
        _GRANITE_SHARED,
        Native("GraniteMoeSharedForCausalLM"),
        (
            *_FIELDS,
            ("attention_bias", True),
            ("num_local_experts", 7),
            ("num_experts_per_tok", 1),
            ("num_experts_per_tok", 3),
            ("shared_intermediate_size", 48),
            ("shared_intermediate_size", 0),
            ("shared_intermediate_size", REMOVED),
            ("embedding_multiplier", REMOVED),
            ("attention_multiplier", 0.1),
            ("residual_multiplier", REMOVED),
            ("logits_scaling", 8.0),
        ),
    ),
    Variant(
        "glm-4.7-flash-like",
        _GLM_4_7_FLASH,
        Native("Glm4MoeLiteForCausalLM", ignored=prediction_layers),
        (
            *(field for field in _FIELDS if field[0] not in _LATENT_HEADS),
            ("attention_bias", True),
            ("kv_lora_rank", 32),
            ("q_lora_rank", 20),
            ("q_lora_rank", None),
            ("qk_nope_head_dim", 16),
            ("qk_rope_head_dim", 4),
            ("v_head_dim", 16),
            ("mlp_layer_types", ["dense", "dense", "sparse"]),
            ("mlp_layer_types", ["sparse"] * 3),
            ("mlp_layer_types", ["dense"] * 3),
            ("first_k_dense_replace", REMOVED),
            ("moe_intermediate_size", 48),
            ("n_group", 2),
            ("n_group", REMOVED),
            ("n_routed_experts", 8),
            ("n_shared_experts", 2),
            ("n_shared_experts", REMOVED),
            ("norm_topk_prob", False),
            ("norm_topk_prob", REMOVED),
            ("num_experts_per_tok", 1),
            ("num_experts_per_tok", REMOVED),
            ("num_nextn_predict_layers", 2),
            ("rope_interleave", False),
            ("routed_scaling_factor", REMOVED),
            ("topk_group", REMOVED),
            ("topk_method", REMOVED),
        ),
        rejected=(
            ("first_k_dense_replace", 2),
            ("mlp_layer_types", ["dense", "sparse", "dense"]),
            ("num_attention_heads", 4),
            ("num_key_value_heads", 3),
            ("partial_rotary_factor", 0.5),
            ("topk_group", 2),  # of 1 group
            ("topk_method", "greedy"),
        ),
        without_effect=(".enorm.weight", ".eh_proj.weight"),
    ),
    Variant(
        "flex-olmo-like",
        _FLEX_OLMO,
        Native("FlexOlmoForCausalLM"),
        (
            *_FIELDS,
            ("num_key_value_heads", REMOVED),
            ("head_dim", 20),
            ("attention_bias", True),
            ("norm_topk_prob", True),
            ("norm_topk_prob", REMOVED),
            ("num_experts", 7),
            ("num_experts", REMOVED),
            ("num_experts_per_tok", 1),
            ("num_experts_per_tok", REMOVED),
        ),
    ),
)

VARIANTS: tuple[Variant, ...] = (
    *_AS_PUBLISHED,
    *(_stacked(variant) for variant in _AS_PUBLISHED),
)
