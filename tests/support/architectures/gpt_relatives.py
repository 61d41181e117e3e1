"""GPT-Neo, CodeGen, Persimmon and BioGPT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from support.architectures.llama import SIZE_FIELDS, SIZES
from support.architectures.native import Native
from support.architectures.variant import REMOVED, VOCAB_SIZE, Variant

_IDS = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1}
_GPT_NEO: dict[str, Any] = {
    "architectures": ["GPTNeoForCausalLM"],
    "model_type": "gpt_neo",
    **_IDS,
    "hidden_size": 72,
    "intermediate_size": None,
    "num_layers": 4,
    "num_heads": 6,
    "max_position_embeddings": 256,
    "activation_function": "gelu_new",
    "attention_types": [[["global", "local"], 2]],
    "attention_layers": ["global", "local", "global", "local"],
    "layer_norm_epsilon": 1e-5,
    "window_size": 7,
}
_CODEGEN: dict[str, Any] = {
    "architectures": ["CodeGenForCausalLM"],
    "model_type": "codegen",
    **_IDS,
    "n_embd": 96,
    "n_layer": 2,
    "n_head": 8,
    "n_inner": None,
    "n_positions": 256,
    "n_ctx": 256,
    "rotary_dim": 8,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}
_PERSIMMON: dict[str, Any] = {
    "architectures": ["PersimmonForCausalLM"],
    "model_type": "persimmon",
    **{name: value for name, value in SIZES.items() if name != "num_key_value_heads"},
    "hidden_size": 96,
    "hidden_act": "relu2",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "qk_layernorm": True,
    "rope_theta": 25000.0,
    "tie_word_embeddings": False,
}
_BIOGPT: dict[str, Any] = {
    "architectures": ["BioGptForCausalLM"],
    "model_type": "biogpt",
    **{name: value for name, value in SIZES.items() if name != "num_key_value_heads"},
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "scale_embedding": True,
}


def _neo_masks(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The published files of GPT-Neo hold each layer's mask."""
    length = config["max_position_embeddings"]
    tensors = {}
    for layer in range(config["num_layers"]):
        attention = f"transformer.h.{layer}.attn.attention"
        tensors[f"{attention}.bias"] = torch.ones(1, 1, length, length).tril()
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)
    return tensors


def _codegen_masks(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The published files of CodeGen hold each layer's causal mask."""
    length = config["n_positions"]
    return {
        f"transformer.h.{layer}.attn.causal_mask": torch.ones(1, 1, length, length).tril()
        for layer in range(config["n_layer"])
    }


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "gpt-neo-like",
        _GPT_NEO,
        Native("GPTNeoForCausalLM", ignored=_neo_masks),
        (
            ("hidden_size", 96),
            ("intermediate_size", 88),
            ("num_heads", 4),
            ("max_position_embeddings", 128),
            ("vocab_size", 400),
            ("activation_function", "relu"),
            ("layer_norm_epsilon", 0.3),
            ("window_size", 5),
            ("tie_word_embeddings", False),
        ),
        rejected=(("attention_layers", ["global"] * 4),),
        without_effect=(".attention.bias", ".masked_bias"),
    ),
    Variant(
        "gpt-neo-transformers-5-like",
        {name: value for name, value in _GPT_NEO.items() if name != "attention_layers"},
        Native("GPTNeoForCausalLM", missing_prefix="transformer."),
        (
            ("attention_types", [[["local"], 3], [["global"], 1]]),
            ("num_layers", 4),
            ("window_size", REMOVED),
            ("activation_function", REMOVED),
        ),
    ),
    Variant(
        "codegen-like",
        _CODEGEN,
        Native("CodeGenForCausalLM", ignored=_codegen_masks),
        (
            ("n_embd", 160),
            ("n_layer", 3),
            ("n_head", 4),
            ("n_inner", 88),
            ("n_positions", 128),
            ("n_ctx", 128),
            ("rotary_dim", 12),
            ("vocab_size", 400),
            ("activation_function", "relu"),
            ("layer_norm_epsilon", 0.3),
            ("tie_word_embeddings", True),
        ),
        rejected=(
            ("auto_map", {"AutoConfig": "configuration_codegen.CodeGenConfig"}),
            ("rotary_dim", 14),
        ),
        without_effect=(".causal_mask",),
    ),
    Variant(
        "persimmon-8b-like",
        _PERSIMMON,
        Native("PersimmonForCausalLM"),
        (
            *SIZE_FIELDS,
            ("hidden_act", "gelu"),
            ("hidden_act", REMOVED),
            ("layer_norm_eps", 0.3),
            ("partial_rotary_factor", 0.25),
            ("partial_rotary_factor", REMOVED),
            ("qk_layernorm", False),
            ("qk_layernorm", REMOVED),
            ("rope_theta", 700.0),
            ("rope_theta", REMOVED),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "persimmon-transformers-5-like",
        {**_PERSIMMON, "qk_layernorm": False},
        Native("PersimmonForCausalLM", as_saved_by_transformers=True),
    ),
    Variant(
        "biogpt-like",
        _BIOGPT,
        Native("BioGptForCausalLM"),
        (
            *SIZE_FIELDS,
            ("hidden_act", "relu"),
            ("hidden_act", REMOVED),
            ("layer_norm_eps", 0.3),
            ("scale_embedding", False),
            ("scale_embedding", REMOVED),
            ("tie_word_embeddings", False),
        ),
        without_effect=(".k_proj.bias",),
    ),
)
