"""Multi-head latent attention: DeepSeek V2 and V3, and Kimi K2, which is a V3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from support.architectures.llama import LLAMA
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 8.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 32,
}
_DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "num_hidden_layers": 2,
    "num_key_value_heads": 6,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_experts_per_tok": 2,
    "rope_scaling": _YARN,
    "pretraining_tp": 1,
}
_V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    **_DEEPSEEK,
    "q_lora_rank": None,
    "n_routed_experts": 5,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
_V2: dict[str, Any] = {
    **_V2_LITE,
    "q_lora_rank": 28,
    "n_routed_experts": 6,
    "n_group": 3,
    "topk_group": 2,
    "topk_method": "group_limited_greedy",
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.6,
}
_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    **_DEEPSEEK,
    "q_lora_rank": 28,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 3,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "num_nextn_predict_layers": 1,
    "rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
}
_KIMI_K2 = {
    **_V3,
    "model_type": "kimi_k2",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.8,
}
_FIELDS: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("intermediate_size", 88),
    ("num_hidden_layers", 3),
    ("vocab_size", 400),
    ("max_position_embeddings", 512),
    ("pretraining_tp", 2),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("rope_scaling", None),
    ("rope_scaling", {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5}),
    ("rope_scaling", {**_YARN, "factor": 3.0}),
    ("attention_bias", True),
    ("tie_word_embeddings", True),
    ("kv_lora_rank", 32),
    ("qk_nope_head_dim", 16),
    ("qk_rope_head_dim", 4),
    ("v_head_dim", 16),
    ("num_experts_per_tok", 1),
    ("num_experts_per_tok", 3),
    ("moe_intermediate_size", 48),
    ("n_shared_experts", 3),
    ("first_k_dense_replace", 0),
    ("first_k_dense_replace", 2),
    ("routed_scaling_factor", 2.5),
)


def prediction_layers(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of the layers that predict further tokens: they follow those of the model."""
    size = config["hidden_size"]
    tensors = {}
    for index in range(config["num_nextn_predict_layers"]):
        layer = f"model.layers.{config['num_hidden_layers'] + index}"
        tensors[f"{layer}.enorm.weight"] = torch.ones(size)
        tensors[f"{layer}.eh_proj.weight"] = torch.ones(size, 2 * size)
    return tensors


# The published code, not transformers, reads these.
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("moe_layer_freq", 2),
    ("scoring_func", "tanh"),
    ("num_attention_heads", 4),
    ("num_key_value_heads", 3),
)
_ONE_BY_ONE: tuple[Variant, ...] = (
    Variant(
        "deepseek-v2-lite-like",
        _V2_LITE,
        Native("DeepseekV2ForCausalLM"),
        (*_FIELDS, ("q_lora_rank", 28), ("n_routed_experts", 7)),
        rejected=(*_REJECTED, ("norm_topk_prob", True)),
    ),
    Variant(
        "deepseek-v2-like",
        _V2,
        Native("DeepseekV2ForCausalLM"),
        (("n_group", 6), ("topk_group", 3), ("topk_method", "greedy"), ("attention_bias", True)),
        rejected=(("topk_method", "random"),),
    ),
    Variant(
        "deepseek-v3-like",
        _V3,
        Native("DeepseekV3ForCausalLM", ignored=prediction_layers),
        (
            *_FIELDS,
            ("q_lora_rank", None),
            ("topk_group", 2),
            ("norm_topk_prob", False),
            ("rope_interleave", False),
            ("rope_interleave", REMOVED),
            ("num_nextn_predict_layers", 2),
        ),
        rejected=(*_REJECTED, ("topk_method", "greedy"), ("scoring_func", "softmax")),
        without_effect=(".enorm.weight", ".eh_proj.weight"),
    ),
)


def _stacked(variant: Variant) -> Variant:
    assert isinstance(variant.layout, Native)
    layout = replace(variant.layout, as_saved_by_transformers=True)
    name = variant.name.removesuffix("-like") + "-stacked-like"
    return replace(variant, name=name, layout=layout, fields=(), rejected=())


VARIANTS: tuple[Variant, ...] = (
    *_ONE_BY_ONE,
    *(_stacked(variant) for variant in _ONE_BY_ONE),
    Variant(
        "kimi-k2-like",
        {**_KIMI_K2, "num_nextn_predict_layers": 0},
        Native("DeepseekV3ForCausalLM"),
    ),
)
