"""Llama and architectures that differ from it by a few options."""

from __future__ import annotations

from typing import Any

import torch

from support.architectures.native import Native
from support.architectures.variant import REMOVED, VOCAB_SIZE, Variant

# Small and odd: heads share KV, no two dimensions are equal by accident, and the hidden size is no
# multiple of 32.
SIZES: dict[str, Any] = {
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA: dict[str, Any] = {
    **SIZES,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

SIZE_FIELDS: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("intermediate_size", 88),
    ("num_hidden_layers", 3),
    ("num_attention_heads", 12),
    ("vocab_size", 400),
    ("max_position_embeddings", 128),
)
ROPE_FIELDS: tuple[tuple[str, Any], ...] = (
    ("rope_theta", 700.0),
    ("rope_theta", REMOVED),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
    ("rope_scaling", {"type": "linear", "factor": 4.0}),
    (
        "rope_scaling",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ),
)
LLAMA_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    *ROPE_FIELDS,
    ("num_key_value_heads", 1),
    ("hidden_act", "gelu"),
    ("hidden_act", "gelu_pytorch_tanh"),
    ("hidden_act", "relu"),
    ("rms_norm_eps", 0.3),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", REMOVED),
    ("attention_dropout", 0.5),
    ("pretraining_tp", 2),
)
_LLAMA_3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _inv_freq(config: Any) -> dict[str, torch.Tensor]:
    """Early Llama files hold the rotary frequencies of each layer."""
    half = config["hidden_size"] // config["num_attention_heads"] // 2
    layers = range(config["num_hidden_layers"])
    return {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(half) for i in layers}


def _named(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **LLAMA, **fields}


def llama_config(**fields: Any) -> dict[str, Any]:
    return _named("LlamaForCausalLM", "llama", **fields)


_WINDOW_FIELDS: tuple[tuple[str, Any], ...] = (
    ("use_sliding_window", True),
    ("use_sliding_window", REMOVED),
    ("max_window_layers", 2),
)
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 1}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.6,
    "logits_scaling": 1.7,
}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "llama-2-like",
        llama_config(num_key_value_heads=6),
        Native("LlamaForCausalLM", ignored=_inv_freq),
        (*LLAMA_FIELDS, ("attention_bias", True), ("mlp_bias", True), ("head_dim", 20)),
        without_effect=(".inv_freq",),
    ),
    Variant(
        "llama-3.1-like",
        llama_config(
            rope_theta=5000.0,
            rope_scaling=_LLAMA_3_SCALING,
            attention_bias=False,
            mlp_bias=False,
            head_dim=20,
        ),
        Native("LlamaForCausalLM"),
        (
            ("rope_scaling", {**_LLAMA_3_SCALING, "factor": 2.0}),
            ("rope_scaling", {**_LLAMA_3_SCALING, "low_freq_factor": 2.0}),
            ("rope_scaling", {**_LLAMA_3_SCALING, "high_freq_factor": 3.0}),
            ("rope_scaling", {**_LLAMA_3_SCALING, "original_max_position_embeddings": 32}),
        ),
    ),
    Variant(
        "llama-3.2-like",
        llama_config(tie_word_embeddings=True, rope_scaling=_LLAMA_3_SCALING),
        Native("LlamaForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "llama-biased-like",
        llama_config(attention_bias=True, mlp_bias=True),
        Native("LlamaForCausalLM"),
        (("attention_bias", False), ("mlp_bias", REMOVED)),
    ),
    Variant("yi-like", llama_config(rope_theta=5e6, rms_norm_eps=1e-6), Native("LlamaForCausalLM")),
    Variant(
        "mistral-7b-v0.1-like",
        _named("MistralForCausalLM", "mistral", sliding_window=7),
        Native("MistralForCausalLM"),
        (*LLAMA_FIELDS, ("sliding_window", None), ("sliding_window", 5), ("head_dim", 20)),
    ),
    Variant(
        "mistral-nemo-like",
        _named("MistralForCausalLM", "mistral", sliding_window=None, head_dim=20),
        Native("MistralForCausalLM"),
    ),
    Variant(
        "qwen2-like",
        _named("Qwen2ForCausalLM", "qwen2", **_QWEN_WINDOW),
        Native("Qwen2ForCausalLM"),
        (*LLAMA_FIELDS, *_WINDOW_FIELDS),
    ),
    Variant(
        "qwen2.5-window-like",
        _named("Qwen2ForCausalLM", "qwen2", **{**_QWEN_WINDOW, "use_sliding_window": True}),
        Native("Qwen2ForCausalLM"),
        (
            ("sliding_window", 5),
            ("max_window_layers", 0),
            ("layer_types", ["sliding_attention", "full_attention"]),
        ),
    ),
    Variant(
        "qwen3-like",
        _named("Qwen3ForCausalLM", "qwen3", head_dim=20, attention_bias=False, **_QWEN_WINDOW),
        Native("Qwen3ForCausalLM"),
        (
            *LLAMA_FIELDS,
            *_WINDOW_FIELDS,
            ("attention_bias", True),
            ("head_dim", 16),
            ("sliding_window", 5),
        ),
    ),
    Variant(
        "qwen3-transformers-5-like",
        _named("Qwen3ForCausalLM", "qwen3", head_dim=20, tie_word_embeddings=True),
        Native("Qwen3ForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "smollm3-like",
        _named(
            "SmolLM3ForCausalLM",
            "smollm3",
            num_hidden_layers=4,
            no_rope_layers=[1, 1, 1, 0],
            no_rope_layer_interval=4,
            pad_token_id=None,
            tie_word_embeddings=True,
            use_sliding_window=False,
            sliding_window=7,
        ),
        Native("SmolLM3ForCausalLM"),
        (
            ("no_rope_layers", [0, 1, 1, 1]),
            ("no_rope_layers", REMOVED),
            ("no_rope_layer_interval", 2),
            *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
            ("num_key_value_heads", 1),
            ("use_sliding_window", True),
            ("sliding_window", 5),
            ("rope_theta", 700.0),
            ("attention_bias", True),
            ("mlp_bias", True),
            ("rms_norm_eps", 0.3),
            ("tie_word_embeddings", False),
            ("hidden_act", "gelu"),
        ),
        rejected=(("num_hidden_layers", 3),),
    ),
    Variant(
        "granite-like",
        _named("GraniteForCausalLM", "granite", **_GRANITE, attention_bias=False, mlp_bias=False),
        Native("GraniteForCausalLM"),
        (
            *LLAMA_FIELDS,
            ("embedding_multiplier", 1.0),
            ("attention_multiplier", 0.1),
            ("residual_multiplier", 0.22),
            ("logits_scaling", 8.0),
            ("attention_bias", True),
            ("mlp_bias", True),
        ),
    ),
)
