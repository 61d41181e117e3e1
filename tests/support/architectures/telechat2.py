"""TeleChat 2, computed by Llama.

Sources: modeling_telechat2.py of Tele-AI/TeleChat2-7B (TelechatAttention, RotaryEmbedding), and
vLLM's vllm/model_executor/models/telechat2.py, which lacks the growth of theta.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import REMOVED, VOCAB_SIZE, Tensors, Variant

_TELECHAT: dict[str, Any] = {
    "architectures": ["TeleChat2ForCausalLM"],
    "model_type": "telechat",
    "apply_residual_connection_post_layernorm": False,
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 72,
    "ffn_hidden_size": 104,
    "n_layer": 2,
    "n_head": 6,
    "num_key_value_heads": 2,
    "layer_norm_epsilon": 1e-5,
    "embed_layernorm": False,
    "logn": True,
    "base_seqlen": 256,
    "training_seqlen": 256,
    "tie_word_embeddings": False,
}


def _num_kv_heads(config: Config) -> int:
    return int(config.get("num_key_value_heads") or config["n_head"])


def _shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["ffn_hidden_size"]
    head_dim = hidden // config["n_head"]
    shapes: Shapes = {"transformer.word_embeddings.weight": (config["vocab_size"], hidden)}
    for index in range(config["n_layer"]):
        layer = f"transformer.h.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attention.query.weight": (hidden, hidden),
            f"{layer}.self_attention.key_value.weight": (
                2 * _num_kv_heads(config) * head_dim,
                hidden,
            ),
            f"{layer}.self_attention.dense.weight": (hidden, hidden),
            f"{layer}.self_attention.dense.bias": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
            f"{layer}.mlp.down_proj.bias": (hidden,),
        }
    shapes["transformer.ln_f.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _as_llama(config: Config, max_model_len: int | None) -> dict[str, Any]:
    length = config.get("training_seqlen", 8192)
    ratio = length / config.get("base_seqlen", length)
    growth = max(2 ** math.ceil(math.log(ratio, 2) + 1) - 1, 1)
    head_dim = config["hidden_size"] // config["n_head"]
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["ffn_hidden_size"],
        "num_hidden_layers": config["n_layer"],
        "num_attention_heads": config["n_head"],
        "num_key_value_heads": _num_kv_heads(config),
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "rope_theta": 10000.0 * growth ** (head_dim / (head_dim - 2)),
        "max_position_embeddings": length,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }


_NAMES = {
    "transformer.word_embeddings": "model.embed_tokens",
    "transformer.h.": "model.layers.",
    "transformer.ln_f": "model.norm",
    "self_attention.dense": "self_attn.o_proj",
    "self_attention.query": "self_attn.q_proj",
}


def _weights(config: Config, tensors: Tensors) -> Tensors:
    """Llama's class has biases in all modules or in none: missing ones are 0."""
    weights: Tensors = {}
    for name, tensor in tensors.items():
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        if "key_value" not in name:
            weights[name] = tensor
            continue
        heads = tensor.unflatten(0, (_num_kv_heads(config), 2, -1))
        for index, letter in enumerate("kv"):
            key = name.replace("self_attention.key_value", f"self_attn.{letter}_proj")
            weights[key] = heads[:, index].flatten(0, 1)
    for name in [name for name in weights if "_proj.weight" in name]:
        bias = name.replace(".weight", ".bias")
        weights.setdefault(bias, torch.zeros(len(weights[name])))
    return weights


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "telechat2-like",
        _TELECHAT,
        Relaid("LlamaForCausalLM", _shapes, _as_llama, _weights),
        (
            ("hidden_size", 96),
            ("ffn_hidden_size", 88),
            ("n_layer", 3),
            ("n_head", 4),
            ("num_key_value_heads", 3),
            ("num_key_value_heads", REMOVED),
            ("vocab_size", 400),
            ("layer_norm_epsilon", 0.3),
            ("layer_norm_epsilon", REMOVED),
            ("base_seqlen", 64),
            ("base_seqlen", 100),
            ("base_seqlen", 512),
            ("training_seqlen", 1024),
            ("training_seqlen", REMOVED),
            ("logn", False),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        rejected=(
            ("apply_residual_connection_post_layernorm", True),
            ("base_seqlen", REMOVED),
            ("embed_layernorm", True),
            ("hidden_act", "gelu"),
            ("hidden_size", 12),
        ),
    ),
)
