"""Qwen, the first one (QWenLMHeadModel), computed by Qwen2.

Source: modeling_qwen.py of Qwen/Qwen-7B (QWenAttention, QWenMLP and get_ntk_alpha), and vLLM 0.6's
vllm/model_executor/models/qwen.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import VOCAB_SIZE, Tensors, Variant

_QWEN: dict[str, Any] = {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 72,
    "intermediate_size": 208,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "kv_channels": 12,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 256,
    "seq_length": 256,
    "no_bias": True,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "use_dynamic_ntk": False,
    "use_logn_attn": False,
    "tie_word_embeddings": False,
}
# Beyond 16 tokens, queries grow with the logarithm of the position.
_LONG = {"seq_length": 16, "use_logn_attn": True, "use_dynamic_ntk": True}


def _shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"] // 2
    width = config["kv_channels"] * config["num_attention_heads"]
    shapes: Shapes = {"transformer.wte.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"transformer.h.{index}"
        shapes |= {
            f"{layer}.ln_1.weight": (hidden,),
            f"{layer}.attn.c_attn.weight": (3 * width, hidden),
            f"{layer}.attn.c_attn.bias": (3 * width,),
            f"{layer}.attn.c_proj.weight": (hidden, width),
            f"{layer}.ln_2.weight": (hidden,),
            f"{layer}.mlp.w1.weight": (inner, hidden),
            f"{layer}.mlp.w2.weight": (inner, hidden),
            f"{layer}.mlp.c_proj.weight": (hidden, inner),
        }
    shapes["transformer.ln_f.weight"] = (hidden,)
    shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _as_qwen2(config: Config, max_model_len: int | None) -> dict[str, Any]:
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"] // 2,
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": config["num_attention_heads"],
        "rms_norm_eps": config["layer_norm_epsilon"],
        "rope_theta": _theta(config, max_model_len or config["seq_length"]),
        "max_position_embeddings": config["max_position_embeddings"],
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _theta(config: Config, length: int) -> float:
    """The base of the rotary frequencies for sequences of `length` tokens (get_ntk_alpha)."""
    base = float(config["rotary_emb_base"])
    if not config["use_dynamic_ntk"] or length <= config["seq_length"]:
        return base
    doublings = math.ceil(math.log2(length / config["seq_length"]) + 1)
    head_dim = config["kv_channels"]
    return base * (2**doublings - 1) ** (head_dim / (head_dim - 2))


_NAMES = {
    "ln_1": "input_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "ln_2": "post_attention_layernorm",
    # silu applies to w2, so that w1 is the other one.
    "mlp.w2": "mlp.gate_proj",
    "mlp.w1": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def _weights(config: Config, tensors: Tensors) -> Tensors:
    weights: Tensors = {
        "model.embed_tokens.weight": tensors["transformer.wte.weight"],
        "model.norm.weight": tensors["transformer.ln_f.weight"],
        "lm_head.weight": tensors["lm_head.weight"],
    }
    for index in range(config["num_hidden_layers"]):
        theirs, ours = f"transformer.h.{index}", f"model.layers.{index}"
        for name, renamed in _NAMES.items():
            weights[f"{ours}.{renamed}.weight"] = tensors[f"{theirs}.{name}.weight"]
        for kind in ("weight", "bias"):
            parts = tensors[f"{theirs}.attn.c_attn.{kind}"].chunk(3)
            for letter, part in zip("qkv", parts, strict=True):
                weights[f"{ours}.self_attn.{letter}_proj.{kind}"] = part
    return weights


def _run(config: Config, model: Any, ids: Tensor) -> Tensor:
    """With use_logn_attn, the query at position p is multiplied by max(1, log_n(p + 1)).

    n is seq_length. Rotation is linear, so that the factor may come before it.
    """
    positions = torch.arange(1, len(ids) + 1)
    factors = (positions.log() / math.log(config["seq_length"])).clamp(min=1.0)
    hooks = [
        layer.self_attn.q_proj.register_forward_hook(lambda _, __, out: out * factors[:, None])
        for layer in model.model.layers
        if config["use_logn_attn"]
    ]
    logits: Tensor = model(ids[None], use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits


_LAYOUT = Relaid("Qwen2ForCausalLM", _shapes, _as_qwen2, _weights, _run)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "qwen-7b-like",
        _QWEN,
        _LAYOUT,
        (
            ("intermediate_size", 176),
            ("num_hidden_layers", 3),
            ("vocab_size", 400),
            ("layer_norm_epsilon", 0.3),
            ("rotary_emb_base", 700),
            ("use_logn_attn", True),
            ("use_dynamic_ntk", True),
        ),
        rejected=(
            ("hidden_size", 96),
            ("kv_channels", 16),
            ("no_bias", False),
            ("num_attention_heads", 4),
            ("rotary_pct", 0.5),
            ("scale_attn_weights", False),
            ("tie_word_embeddings", True),
        ),
    ),
    Variant(
        "qwen-7b-long-like",
        {**_QWEN, **_LONG},
        _LAYOUT,
        (("seq_length", 8), ("max_position_embeddings", 512)),
        rejected=(("seq_length", 1), ("intermediate_size", 175)),
    ),
)
