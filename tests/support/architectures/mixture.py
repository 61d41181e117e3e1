"""Mixtures of experts with grouped-query attention, their experts one by one and stacked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.architectures.latent import prediction_layers
from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.phi import long_rope
from support.architectures.variant import REMOVED, Variant

_MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    **LLAMA,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
_PHI_MOE: dict[str, Any] = {
    "architectures": ["PhiMoEForCausalLM"],
    "model_type": "phimoe",
    **LLAMA,
    "attention_bias": True,
    "lm_head_bias": True,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.2,
    "input_jitter_noise": 0.01,
    "original_max_position_embeddings": 32,
    "rope_scaling": {
        **long_rope(6),
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        "original_max_position_embeddings": 32,
    },
    "sliding_window": None,
}
_QWEN_2_MOE: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    **LLAMA,
    "num_hidden_layers": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
    "use_sliding_window": False,
    "sliding_window": 7,
    "max_window_layers": 2,
}
_QWEN_3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    **LLAMA,
    "head_dim": 20,
    "attention_bias": False,
    "moe_intermediate_size": 40,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
    "sliding_window": 7,
}
_OLMOE: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    **LLAMA,
    "intermediate_size": 40,
    "attention_bias": False,
    "clip_qkv": None,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": False,
    "pad_token_id": None,
}
_GRANITE_MOE: dict[str, Any] = {
    "architectures": ["GraniteMoeForCausalLM"],
    "model_type": "granitemoe",
    **LLAMA,
    "attention_bias": False,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.7,
    "tie_word_embeddings": True,
}
_GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    **LLAMA,
    "head_dim": 20,
    "attention_bias": True,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "swiglu_limit": 0.7,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
    "initial_context_length": 32,
    "rope_theta": 5000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
    },
    "pad_token_id": None,
}
_GLM_4_MOE: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    **LLAMA,
    "head_dim": 20,
    "partial_rotary_factor": 0.6,
    "attention_bias": True,
    "use_qk_norm": True,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "pad_token_id": None,
}
_ROUTER_FIELDS: tuple[tuple[str, Any], ...] = (
    ("num_experts_per_tok", 1),
    ("num_experts_per_tok", 3),
)
_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 1),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("tie_word_embeddings", True),
)
_QWEN_FIELDS: tuple[tuple[str, Any], ...] = (
    *_FIELDS,
    *_ROUTER_FIELDS,
    ("num_experts", 7),
    ("moe_intermediate_size", 48),
    ("norm_topk_prob", True),
    ("norm_topk_prob", False),
    ("decoder_sparse_step", 2),
    ("mlp_only_layers", [0]),
    ("mlp_only_layers", None),
)


def _stacked(variant: Variant) -> Variant:
    """The same checkpoint as transformers 5 saves its own form of it: experts in 3-D tensors."""
    assert isinstance(variant.layout, Native)
    layout = replace(variant.layout, as_saved_by_transformers=True)
    name = variant.name.removesuffix("-like") + "-stacked-like"
    return replace(variant, name=name, layout=layout, fields=(), rejected=())


_ONE_BY_ONE: tuple[Variant, ...] = (
    Variant(
        "mixtral-8x7b-like",
        _MIXTRAL,
        Native("MixtralForCausalLM"),
        (
            *_FIELDS,
            *_ROUTER_FIELDS,
            ("num_local_experts", 7),
            ("sliding_window", 7),
            ("head_dim", 20),
            ("router_jitter_noise", 0.5),
        ),
    ),
    Variant(
        "phi-3.5-moe-like",
        _PHI_MOE,
        Native("PhimoeForCausalLM"),
        (
            ("intermediate_size", 88),
            ("num_hidden_layers", 3),
            ("vocab_size", 400),
            ("max_position_embeddings", 512),
            ("original_max_position_embeddings", 64),
            ("num_key_value_heads", 1),
            ("hidden_act", "gelu"),
            ("rms_norm_eps", 0.3),
            ("rope_theta", 700.0),
            ("tie_word_embeddings", True),
            ("num_local_experts", 7),
            ("attention_bias", False),
            ("lm_head_bias", False),
            ("router_jitter_noise", 0.01),
            ("rope_scaling", None),
            ("sliding_window", 7),
            ("input_jitter_noise", 0.3),
        ),
        rejected=(
            ("num_experts_per_tok", 1),
            ("num_experts_per_tok", 3),
        ),
    ),
    Variant(
        "qwen1.5-moe-like",
        _QWEN_2_MOE,
        Native("Qwen2MoeForCausalLM"),
        (
            *_QWEN_FIELDS,
            ("shared_expert_intermediate_size", 64),
            ("qkv_bias", False),
            ("use_sliding_window", True),
            ("sliding_window", 5),
            ("max_window_layers", 0),
        ),
    ),
    Variant(
        "qwen3-moe-like",
        _QWEN_3_MOE,
        Native("Qwen3MoeForCausalLM"),
        (
            *_QWEN_FIELDS,
            ("attention_bias", True),
            ("head_dim", 16),
            ("use_sliding_window", True),
            ("sliding_window", 5),
        ),
    ),
    Variant(
        "olmoe-like",
        _OLMOE,
        Native("OlmoeForCausalLM"),
        (
            *_FIELDS,
            *_ROUTER_FIELDS,
            ("num_experts", 7),
            ("norm_topk_prob", True),
            ("attention_bias", True),
            ("clip_qkv", 0.8),
        ),
    ),
    Variant(
        "glm-4.5-like",
        _GLM_4_MOE,
        Native("Glm4MoeForCausalLM", ignored=prediction_layers),
        (
            *_FIELDS,
            *_ROUTER_FIELDS,
            ("n_routed_experts", 4),
            ("n_shared_experts", 2),
            ("moe_intermediate_size", 48),
            ("n_group", 2),
            ("norm_topk_prob", False),
            ("routed_scaling_factor", 1.0),
            ("first_k_dense_replace", 0),
            ("first_k_dense_replace", 2),
            ("num_nextn_predict_layers", 2),
            ("partial_rotary_factor", 1.0),
            ("partial_rotary_factor", REMOVED),
            ("attention_bias", False),
            ("use_qk_norm", False),
            ("head_dim", 16),
        ),
        rejected=(("topk_group", 2),),  # of 1 group
        without_effect=(".enorm.weight", ".eh_proj.weight"),
    ),
)
VARIANTS: tuple[Variant, ...] = (
    *_ONE_BY_ONE,
    *(_stacked(variant) for variant in _ONE_BY_ONE),
    Variant(
        "phimoe-unbiased-like",
        {
            **_PHI_MOE,
            "architectures": ["PhimoeForCausalLM"],
            "attention_bias": False,
            "lm_head_bias": False,
            "rope_scaling": None,
            "router_jitter_noise": 0.01,
        },
        Native("PhimoeForCausalLM"),
        (("hidden_size", 96), ("num_attention_heads", 12)),
    ),
    Variant(
        "granite-moe-like",
        _GRANITE_MOE,
        Native("GraniteMoeForCausalLM"),
        (
            *_FIELDS,
            *_ROUTER_FIELDS,
            ("tie_word_embeddings", False),
            ("num_local_experts", 7),
            ("embedding_multiplier", 1.0),
            ("attention_multiplier", 0.1),
            ("residual_multiplier", 0.22),
            ("logits_scaling", 8.0),
            ("attention_bias", True),
        ),
    ),
    Variant(
        "granite-moe-transformers-5-like",
        _GRANITE_MOE,
        Native("GraniteMoeForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "gpt-oss-like",
        _GPT_OSS,
        Native("GptOssForCausalLM"),
        (
            *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
            *_ROUTER_FIELDS,
            ("num_key_value_heads", 1),
            ("num_local_experts", 7),
            ("head_dim", 16),
            ("rms_norm_eps", 0.3),
            ("rope_theta", 700.0),
            ("rope_scaling", {**_GPT_OSS["rope_scaling"], "truncate": True}),
            ("rope_scaling", {**_GPT_OSS["rope_scaling"], "beta_fast": 4.0}),
            ("rope_scaling", None),
            ("experts_per_token", 3),
            ("initial_context_length", 64),
            ("swiglu_limit", 7.0),
            ("swiglu_limit", REMOVED),
            ("swiglu_alpha", 1.0),
            ("sliding_window", 5),
            ("layer_types", REMOVED),
            ("layer_types", ["full_attention", "sliding_attention"]),
            ("attention_bias", False),
            ("hidden_act", "gelu"),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "gpt-oss-transformers-5-like",
        _GPT_OSS,
        Native("GptOssForCausalLM", as_saved_by_transformers=True),
    ),
)
