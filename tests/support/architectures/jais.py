"""Jais, computed from the published description: transformers has no such gated GPT-2.

Sources: modeling_jais.py of inceptionai/jais-13b and inceptionai/jais-family-6p7b (JAISAttention,
AlibiPositionEmbeddingLayer), and vLLM's vllm/model_executor/models/jais.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN

from support.architectures.relaid import Config, Shapes, random_tensors
from support.architectures.variant import REMOVED, VOCAB_SIZE, Oracle, Tensors, Variant

_JAIS: dict[str, Any] = {
    "architectures": ["JAISLMHeadModel"],
    "model_type": "jais",
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "n_embd": 72,
    "n_inner": 104,
    "n_layer": 2,
    "n_head": 6,
    "n_positions": 256,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-5,
    "position_embedding_type": "alibi",
    "alibi_scaling": None,
    "mup_embeddings_scale": 3.0,
    "mup_output_alpha": 1.6,
    "mup_scale_qk_dot_by_d": True,
    "mup_width_scale": 0.7,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}
_OLD_NAMES = {
    "mup_embeddings_scale": "embeddings_scale",
    "mup_scale_qk_dot_by_d": "scale_qk_dot_by_d",
    "mup_width_scale": "width_scale",
}


@dataclass(frozen=True)
class _Dense:
    oracle: ClassVar[str] = "written for the test"

    def random_checkpoint(self, config: Config, seed: int) -> tuple[dict[str, Any], Tensors]:
        tensors = random_tensors(_shapes(config), seed)
        if _has_alibi(config):
            tensors["transformer.relative_pe.slopes"] = torch.ones(config["n_head"])
        return dict(config), tensors

    def load(self, config: Config, tensors: Tensors, max_model_len: int | None) -> Oracle:
        weights = {name: tensor.float() for name, tensor in tensors.items()}
        return Oracle(lambda ids: _logits(config, weights, ids))


def _has_alibi(config: Config) -> bool:
    return config.get("position_embedding_type", "learned") == "alibi"


def _inner_size(config: Config) -> int:
    return int(config.get("n_inner") or 4 * config["n_embd"])


def _option(config: Config, name: str, default: Any) -> Any:
    """An option by its name or by that of the first configs."""
    return config.get(name, config.get(_OLD_NAMES.get(name, name), default))


def _shapes(config: Config) -> Shapes:
    hidden, inner = config["n_embd"], _inner_size(config)
    vocabulary = (config["vocab_size"], hidden)
    shapes: Shapes = {"transformer.wte.weight": vocabulary}
    if not _has_alibi(config):
        shapes["transformer.wpe.weight"] = (config["n_positions"], hidden)
    for index in range(config["n_layer"]):
        modules: Shapes = {
            "ln_1": (hidden,),
            "attn.c_attn": (hidden, 3 * hidden),
            "attn.c_proj": (hidden, hidden),
            "ln_2": (hidden,),
            "mlp.c_fc": (hidden, inner),
            "mlp.c_proj": (inner, hidden),
        }
        if config.get("activation_function") == "swiglu":
            modules["mlp.c_fc2"] = (hidden, inner)
        for name, shape in modules.items():
            shapes[f"transformer.h.{index}.{name}.weight"] = shape
            shapes[f"transformer.h.{index}.{name}.bias"] = shape[-1:]
    shapes |= {"transformer.ln_f.weight": (hidden,), "transformer.ln_f.bias": (hidden,)}
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = vocabulary
    return shapes


def _logits(config: Config, weights: Tensors, ids: Tensor) -> Tensor:
    """Logits [n, vocab] of `ids` [n]."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        eps = config.get("layer_norm_epsilon", 1e-5)
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    hidden = weights["transformer.wte.weight"][ids]
    if not _has_alibi(config):
        hidden = hidden + weights["transformer.wpe.weight"][: len(ids)]
    hidden = hidden * _option(config, "mup_embeddings_scale", 1.0)
    kind = config.get("activation_function", "gelu_new")
    for index in range(config["n_layer"]):
        layer = f"transformer.h.{index}"
        qkv = linear(f"{layer}.attn.c_attn", norm(f"{layer}.ln_1", hidden))
        hidden = hidden + linear(f"{layer}.attn.c_proj", _attention(config, qkv))
        x = norm(f"{layer}.ln_2", hidden)
        up = linear(f"{layer}.mlp.c_fc", x)
        if kind == "swiglu":
            up = up * functional.silu(linear(f"{layer}.mlp.c_fc2", x))
        else:
            up = ACT2FN[kind](up)
        hidden = hidden + linear(f"{layer}.mlp.c_proj", up)
    head = weights.get("lm_head.weight", weights["transformer.wte.weight"])
    scale = config.get("mup_output_alpha", 1.0) * _option(config, "mup_width_scale", 1.0)
    return norm("transformer.ln_f", hidden) @ head.T * scale


def _attention(config: Config, qkv: Tensor) -> Tensor:
    num_heads, length = config["n_head"], len(qkv)
    query, key, value = (
        part.unflatten(1, (num_heads, -1)).transpose(0, 1) for part in qkv.chunk(3, dim=1)
    )
    scores = query @ key.transpose(1, 2)
    if config.get("scale_attn_weights", True):
        power = 1.0 if _option(config, "mup_scale_qk_dot_by_d", False) else 0.5
        scores = scores / query.shape[-1] ** power
    positions = torch.arange(length)
    distance = positions[None, :] - positions[:, None]
    if _has_alibi(config):
        scaling = config.get("alibi_scaling") or {}
        slopes = torch.tensor(_slopes(num_heads)) / scaling.get("factor", 1.0)
        scores = scores + slopes[:, None, None] * distance
    scores = scores.masked_fill(distance > 0, -math.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)


def _slopes(num_heads: int) -> list[float]:
    """ALiBi's slopes (Press et al. 2022, section 3)."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-8.0 * head / (2 * power)) for head in range(1, 2 * power, 2)]
    return (slopes + between)[:num_heads]


_FIELDS: tuple[tuple[str, Any], ...] = (
    ("n_embd", 96),
    ("n_inner", 88),
    ("n_inner", None),
    ("n_layer", 3),
    ("n_head", 4),
    ("n_positions", 128),
    ("vocab_size", 400),
    ("layer_norm_epsilon", 0.3),
    ("scale_attn_weights", False),
    ("tie_word_embeddings", False),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "jais-family-like",
        _JAIS,
        _Dense(),
        (
            *_FIELDS,
            ("activation_function", "gelu_new"),
            ("activation_function", REMOVED),
            ("alibi_scaling", {"type": "linear", "factor": 2.0}),
            ("alibi_scaling", {"type": "linear", "train_seq_len": 128}),
            ("mup_embeddings_scale", 1.0),
            ("mup_output_alpha", 1.0),
            ("mup_scale_qk_dot_by_d", False),
            ("mup_width_scale", 0.2),
            ("position_embedding_type", "learned"),
            ("position_embedding_type", REMOVED),
        ),
        rejected=(
            ("activation_function", "unknown"),
            ("add_cross_attention", True),
            ("position_embedding_type", "rotary"),
            ("scale_attn_by_inverse_layer_idx", True),
        ),
        without_effect=(".relative_pe.slopes",),
    ),
    Variant(
        "jais-13b-like",
        {
            **{_OLD_NAMES.get(name, name): value for name, value in _JAIS.items()},
            "mup_output_alpha": 1.0,
        },
        _Dense(),
        (("embeddings_scale", 14.6), ("scale_qk_dot_by_d", False), ("width_scale", 0.11)),
        without_effect=(".relative_pe.slopes",),
    ),
    Variant(
        "jais-learned-like",
        {**_JAIS, "position_embedding_type": "learned", "activation_function": "gelu"},
        _Dense(),
    ),
)
