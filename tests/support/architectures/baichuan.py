"""Baichuan: 7B with rotary positions, 13B with ALiBi, and version 2 with a normalized head.

Sources: modeling_baichuan.py of baichuan-inc/Baichuan-13B-Chat (_gen_alibi_mask, W_pack) and
baichuan-inc/Baichuan2-7B-Chat (NormHead); vLLM 0.6's vllm/model_executor/models/baichuan.py, which
takes the vocabulary of 125,696 tokens for version 2. The config class of the 13B models has
model_max_length and no max_position_embeddings.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from support.architectures.llama import LLAMA
from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import REMOVED, Tensors, Variant

_VOCAB_SIZE_OF_VERSION_2 = 125_696

_BAICHUAN_7B: dict[str, Any] = {
    "architectures": ["BaiChuanForCausalLM"],
    "model_type": "baichuan",
    **{
        name: value
        for name, value in LLAMA.items()
        if name not in ("num_key_value_heads", "rope_theta")
    },
    "rms_norm_eps": 1e-6,
    "model_max_length": 256,
    "pad_token_id": 0,
}
_BAICHUAN_13B: dict[str, Any] = {
    **{name: value for name, value in _BAICHUAN_7B.items() if name != "max_position_embeddings"},
    "architectures": ["BaichuanForCausalLM"],
}
# The large vocabulary makes files large: few columns.
_VERSION_2 = {"vocab_size": _VOCAB_SIZE_OF_VERSION_2, "hidden_size": 40, "num_attention_heads": 5}
_BAICHUAN_2_7B: dict[str, Any] = {
    **_BAICHUAN_7B,
    **_VERSION_2,
    "architectures": ["BaichuanForCausalLM"],
}


def _shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.W_pack.weight": (3 * hidden, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, hidden),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _as_llama(config: Config, max_model_len: int | None) -> dict[str, Any]:
    return {**config, "model_type": "llama", "max_position_embeddings": 256}


def _weights(config: Config, tensors: Tensors) -> Tensors:
    weights: Tensors = {}
    for name, tensor in tensors.items():
        if ".W_pack." in name:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                weights[name.replace("W_pack", f"{letter}_proj")] = part
        elif name == "lm_head.weight" and config["vocab_size"] == _VOCAB_SIZE_OF_VERSION_2:
            weights[name] = torch.nn.functional.normalize(tensor)
        else:
            weights[name] = tensor
    return weights


def _slopes(num_heads: int) -> list[float]:
    """ALiBi's slopes (Press et al. 2022, section 3): 2^(-8/n), 2^(-16/n), … for n heads.

    Where n is no power of two: those of the power below, then every other one of the power above.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-8.0 * head / (2 * power)) for head in range(1, 2 * power, 2)]
    return (slopes + between)[:num_heads]


def _run(config: Config, model: Any, ids: Tensor) -> Tensor:
    """ALiBi is a mask of floats; where all positions are 0, rotation leaves everything as it is."""
    is_first = config["architectures"] == ["BaiChuanForCausalLM"]
    if is_first or "max_position_embeddings" in config:
        return model(ids[None], use_cache=False).logits[0]
    positions = torch.arange(len(ids))
    distance = (positions[None, :] - positions[:, None]).float()
    mask = torch.tensor(_slopes(config["num_attention_heads"]))[:, None, None] * distance
    mask = mask.masked_fill(distance > 0, torch.finfo(torch.float32).min)
    return model(
        ids[None],
        attention_mask=mask[None],
        position_ids=torch.zeros_like(ids)[None],
        use_cache=False,
    ).logits[0]


_LAYOUT = Relaid("LlamaForCausalLM", _shapes, _as_llama, _weights, _run)
_FIELDS: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("intermediate_size", 88),
    ("num_hidden_layers", 3),
    ("num_attention_heads", 4),
    ("vocab_size", 400),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
)
# Values that no published model has.
_REJECTED: tuple[tuple[str, Any], ...] = (("tie_word_embeddings", True),)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "baichuan-7b-like",
        _BAICHUAN_7B,
        _LAYOUT,
        (
            *_FIELDS,
            ("rope_theta", 700.0),
            ("max_position_embeddings", 128),
            ("max_position_embeddings", REMOVED),
        ),
        rejected=_REJECTED,
    ),
    Variant(
        "baichuan-13b-like",
        _BAICHUAN_13B,
        _LAYOUT,
        (*_FIELDS, ("model_max_length", 128)),
        rejected=_REJECTED,
    ),
    Variant("baichuan2-7b-like", _BAICHUAN_2_7B, _LAYOUT),
    Variant("baichuan2-13b-like", {**_BAICHUAN_13B, **_VERSION_2}, _LAYOUT),
)
