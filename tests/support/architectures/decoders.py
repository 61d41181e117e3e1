"""Decoders with LayerNorm: StableLM, StarCoder 2, Nemotron, and the GPT family's rotary models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from support.architectures.llama import SIZE_FIELDS, SIZES
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_STABLELM: dict[str, Any] = {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    **SIZES,
    "hidden_size": 120,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.4,
    "rope_theta": 10000.0,
    "use_qkv_bias": False,
    "tie_word_embeddings": False,
}
_EPOCH_NAMES = {"rope_pct": "partial_rotary_factor", "norm_eps": "layer_norm_eps"}
_STARCODER_2: dict[str, Any] = {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    **SIZES,
    "hidden_act": "gelu_pytorch_tanh",
    "mlp_type": "default",
    "norm_type": "layer_norm",
    "norm_epsilon": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": 7,
    "use_bias": True,
}
_NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronForCausalLM"],
    "model_type": "nemotron",
    **SIZES,
    "head_dim": 20,
    "hidden_act": "relu2",
    "norm_eps": 1e-5,
    "partial_rotary_factor": 0.6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
_NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    **{name: value for name, value in SIZES.items() if name != "num_key_value_heads"},
    "hidden_size": 96,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
}


def _from_epoch(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of StableLMEpoch, the class that Stability published first, by today's names."""
    renamed = {_EPOCH_NAMES.get(name, name): value for name, value in config.items()}
    return {**renamed, "model_type": "stablelm"}


def _neox_masks(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """GPT-NeoX's published files hold each layer's causal mask and rotary frequencies."""
    length = config["max_position_embeddings"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        attention = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{attention}.bias"] = torch.ones(1, 1, length, length).tril()
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{attention}.rotary_emb.inv_freq"] = torch.ones(12)
    return tensors


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "stablelm-3b-4e1t-like",
        {**_STABLELM, "num_key_value_heads": 6},
        Native("StableLmForCausalLM"),
        (
            *SIZE_FIELDS,
            ("num_key_value_heads", 2),
            ("hidden_act", "gelu"),
            ("layer_norm_eps", 0.3),
            ("partial_rotary_factor", 0.7),
            ("rope_theta", 700.0),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("use_qkv_bias", True),
            ("qk_layernorm", True),
            ("use_parallel_residual", True),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "stablelm-2-1.6b-like",
        {**_STABLELM, "hidden_size": 96, "partial_rotary_factor": 0.25, "use_qkv_bias": True},
        Native("StableLmForCausalLM"),
        (("partial_rotary_factor", REMOVED), ("use_qkv_bias", REMOVED)),
    ),
    Variant(
        "stablelm-2-12b-like",
        {**_STABLELM, "qk_layernorm": True, "use_parallel_residual": True},
        Native("StableLmForCausalLM"),
        (("use_parallel_residual", False), ("layer_norm_eps", 0.3)),
    ),
    Variant(
        "stablelm-epoch-like",
        {
            **{name: _STABLELM[name] for name in _STABLELM if name not in _EPOCH_NAMES.values()},
            "architectures": ["StableLMEpochForCausalLM"],
            "model_type": "stablelm_epoch",
            "rope_pct": 0.4,
            "norm_eps": 1e-5,
        },
        Native("StableLmForCausalLM", _from_epoch),
        (("rope_pct", 0.7), ("norm_eps", 0.3), ("rope_theta", 700.0), ("use_qkv_bias", True)),
    ),
    Variant(
        "starcoder2-like",
        _STARCODER_2,
        Native("Starcoder2ForCausalLM"),
        (
            *SIZE_FIELDS,
            ("num_key_value_heads", 1),
            ("hidden_act", "gelu"),
            ("norm_epsilon", 0.3),
            ("rope_theta", 700.0),
            ("sliding_window", None),
            ("sliding_window", 5),
            ("use_bias", False),
            ("tie_word_embeddings", False),
        ),
        rejected=(("mlp_type", "gated"), ("norm_type", "rms_norm")),
    ),
    Variant(
        "nemotron-like",
        _NEMOTRON,
        Native("NemotronForCausalLM"),
        (
            *SIZE_FIELDS,
            ("num_key_value_heads", 1),
            ("head_dim", 16),
            ("hidden_act", "silu"),
            ("norm_eps", 0.3),
            ("partial_rotary_factor", 1.0),
            ("partial_rotary_factor", REMOVED),
            ("rope_theta", 700.0),
            ("attention_bias", True),
            ("mlp_bias", True),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "pythia-like",
        _NEOX,
        Native("GPTNeoXForCausalLM", ignored=_neox_masks),
        (
            *SIZE_FIELDS,
            ("hidden_act", "gelu_new"),
            ("hidden_act", "gelu_fast"),
            ("layer_norm_eps", 0.3),
            ("rotary_pct", 0.5),
            ("rotary_pct", 1.0),
            ("rotary_emb_base", 700),
            ("use_parallel_residual", False),
            ("use_parallel_residual", REMOVED),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("attention_bias", False),
            ("tie_word_embeddings", True),
        ),
        without_effect=(".attention.bias", ".masked_bias", ".inv_freq"),
    ),
    Variant(
        "gpt-neox-serial-like",
        {**_NEOX, "use_parallel_residual": False, "rotary_pct": 1.0},
        Native("GPTNeoXForCausalLM"),
    ),
    Variant(
        "gpt-neox-transformers-5-like",
        _NEOX,
        Native("GPTNeoXForCausalLM", as_saved_by_transformers=True),
    ),
)
