"""GPT-2, GPT-BigCode, GPT-J, OPT and BLOOM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from support.architectures.native import Native
from support.architectures.variant import REMOVED, VOCAB_SIZE, Variant

_IDS = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1}
_GPT_2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    **_IDS,
    "n_embd": 72,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 256,
    "n_ctx": 256,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
_BIG_CODE: dict[str, Any] = {
    **_GPT_2,
    "architectures": ["GPTBigCodeForCausalLM"],
    "model_type": "gpt_bigcode",
    "activation_function": "gelu_pytorch_tanh",
    "n_inner": 104,
    "multi_query": True,
}
_GPT_J: dict[str, Any] = {
    **_GPT_2,
    "architectures": ["GPTJForCausalLM"],
    "model_type": "gptj",
    "n_embd": 96,
    "rotary": True,
    "rotary_dim": 12,
    "tie_word_embeddings": False,
}
_OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    **_IDS,
    "hidden_size": 72,
    "word_embed_proj_dim": 72,
    "ffn_dim": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "pad_token_id": 1,
}
_BLOOM: dict[str, Any] = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    **_IDS,
    "hidden_size": 72,
    "n_layer": 2,
    "n_head": 6,
    "layer_norm_epsilon": 1e-5,
    "apply_residual_connection_post_layernorm": False,
}
_GPT_FIELDS: tuple[tuple[str, Any], ...] = (
    ("n_embd", 120),
    ("n_layer", 3),
    ("n_head", 4),
    ("n_inner", 88),
    ("n_positions", 128),
    ("n_ctx", 128),
    ("vocab_size", 400),
    ("activation_function", "gelu"),
    ("activation_function", "relu"),
    ("layer_norm_epsilon", 0.3),
)


def _causal_masks(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The published files of GPT-2 and GPT-J hold each layer's causal mask."""
    prefix = "" if config["model_type"] == "gpt2" else "transformer."
    length = config["n_positions"]
    tensors = {}
    for layer in range(config["n_layer"]):
        attention = f"{prefix}h.{layer}.attn"
        tensors[f"{attention}.bias"] = torch.ones(1, 1, length, length).tril()
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)
    return tensors


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "gpt2-like",
        _GPT_2,
        Native("GPT2LMHeadModel", missing_prefix="transformer.", ignored=_causal_masks),
        (
            *_GPT_FIELDS,
            ("scale_attn_weights", False),
            ("scale_attn_by_inverse_layer_idx", True),
            ("reorder_and_upcast_attn", True),
            ("add_cross_attention", True),
            ("tie_word_embeddings", False),
        ),
        without_effect=(".attn.bias", ".attn.masked_bias"),
    ),
    Variant("gpt2-transformers-5-like", _GPT_2, Native("GPT2LMHeadModel")),
    Variant(
        "starcoder-like",
        _BIG_CODE,
        Native("GPTBigCodeForCausalLM"),
        (
            *_GPT_FIELDS,
            ("n_inner", None),
            ("multi_query", False),
            ("multi_query", REMOVED),
            ("scale_attn_weights", False),
            ("attention_softmax_in_fp32", False),
            ("scale_attention_softmax_in_fp32", False),
            ("tie_word_embeddings", False),
        ),
    ),
    Variant(
        "gpt-bigcode-multi-head-like",
        {**_BIG_CODE, "multi_query": False, "n_inner": None},
        Native("GPTBigCodeForCausalLM"),
    ),
    Variant(
        "gpt-j-6b-like",
        _GPT_J,
        Native("GPTJForCausalLM", ignored=_causal_masks),
        (
            *_GPT_FIELDS,
            ("rotary_dim", 8),
            ("rotary_dim", 16),
            ("rope_theta", 700.0),
            ("tie_word_embeddings", True),
        ),
        rejected=(("rotary", False),),
        without_effect=(".attn.bias", ".attn.masked_bias"),
    ),
    Variant(
        "opt-like",
        _OPT,
        Native("OPTForCausalLM"),
        (
            ("hidden_size", 96),
            ("ffn_dim", 88),
            ("num_hidden_layers", 3),
            ("num_attention_heads", 4),
            ("max_position_embeddings", 128),
            ("vocab_size", 400),
            ("activation_function", "gelu"),
            ("do_layer_norm_before", False),
            ("enable_bias", False),
            ("layer_norm_elementwise_affine", False),
            ("word_embed_proj_dim", 40),
            ("_remove_final_layer_norm", True),
            ("tie_word_embeddings", False),
        ),
        without_effect=(".k_proj.bias",),
    ),
    Variant(
        "opt-350m-like",
        {**_OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 40},
        Native("OPTForCausalLM"),
        without_effect=(".k_proj.bias",),
    ),
    Variant(
        "bloom-like",
        _BLOOM,
        Native("BloomForCausalLM"),
        (
            ("hidden_size", 96),
            ("n_layer", 3),
            ("n_head", 4),
            ("vocab_size", 400),
            ("layer_norm_epsilon", 0.3),
            ("apply_residual_connection_post_layernorm", True),
            ("slow_but_exact", True),
            ("tie_word_embeddings", False),
        ),
    ),
    Variant(
        "bloom-560m-like",
        {
            **{name: _BLOOM[name] for name in _BLOOM if name != "hidden_size"},
            "n_embed": 64,
            "n_head": 8,
        },
        Native("BloomForCausalLM", missing_prefix="transformer."),
        (("n_embed", 96),),
    ),
)
