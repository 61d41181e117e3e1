"""Phi-3-small, computed from the published description: transformers has nothing like it.

Sources: modeling_phi3_small.py and configuration_phi3_small.py of microsoft/Phi-3-small-8k-instruct
(gegelu, _split_heads, mup_* fields), and vLLM 0.6's vllm/model_executor/models/phi3_small.py and
vllm/attention/ops/blocksparse_attention/utils.py (the pattern of blocks). The published code also
masks the ids that its tokenizer does not use; config.json does not list them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from support.architectures.relaid import Config, Shapes, random_tensors, split_grouped_qkv
from support.architectures.variant import REMOVED, VOCAB_SIZE, Oracle, Tensors, Variant

_PHI_3_SMALL: dict[str, Any] = {
    "architectures": ["Phi3SmallForCausalLM"],
    "model_type": "phi3small",
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 72,
    "ff_intermediate_size": 104,
    "ff_dim_multiplier": None,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "gegelu",
    "gegelu_limit": 1.2,
    "gegelu_pad_to_256": True,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 256,
    "blocksparse_block_size": 16,
    "blocksparse_homo_head_pattern": False,
    "blocksparse_num_local_blocks": 1,
    "blocksparse_triton_kernel_block_size": 16,
    "blocksparse_vert_stride": 4,
    "dense_attention_every_n_layers": 2,
    "mup_attn_multiplier": 1.3,
    "mup_embedding_multiplier": 2.0,
    "mup_use_scaling": True,
    "mup_width_multiplier": 1.7,
    "rope_embedding_base": 5000,
    "rope_position_scale": 1.0,
    "rope_scaling": None,
}
_LONG_ROPE: dict[str, Any] = {
    "type": "su",
    "short_factor": [1.0 + 0.05 * pair for pair in range(6)],
    "long_factor": [1.5 + 0.9 * pair for pair in range(6)],
    "short_mscale": 1.1,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class _Dense:
    oracle: ClassVar[str] = "written for the test"

    def random_checkpoint(self, config: Config, seed: int) -> tuple[dict[str, Any], Tensors]:
        return dict(config), random_tensors(_shapes(config), seed)

    def load(self, config: Config, tensors: Tensors, max_model_len: int | None) -> Oracle:
        weights = {name: tensor.float() for name, tensor in tensors.items()}
        length = max_model_len or config["max_position_embeddings"]
        return Oracle(lambda ids: _logits(config, weights, ids, length))


def _shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["ff_intermediate_size"]
    head_dim = hidden // config["num_attention_heads"]
    num_rows = hidden + 2 * config["num_key_value_heads"] * head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.query_key_value": (num_rows, hidden),
            "self_attn.dense": (hidden, hidden),
            "post_attention_layernorm": (hidden,),
            "mlp.up_proj": (2 * inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"{layer}.{name}.weight"] = shape
            shapes[f"{layer}.{name}.bias"] = shape[:1]
    shapes["model.final_layernorm.weight"] = (hidden,)
    shapes["model.final_layernorm.bias"] = (hidden,)
    return shapes


def _logits(config: Config, weights: Tensors, ids: Tensor, max_length: int) -> Tensor:
    """Logits [n, vocab] of `ids` [n]; `max_length` tokens choose the table of long rope."""

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias, config["layer_norm_epsilon"])

    embedding = weights["model.embed_tokens.weight"]
    hidden = embedding[ids] * config["mup_embedding_multiplier"]
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        qkv = linear(f"{layer}.self_attn.query_key_value", norm(f"{layer}.input_layernorm", hidden))
        attention = _attention(config, qkv, index, max_length)
        hidden = hidden + linear(f"{layer}.self_attn.dense", attention)
        up = linear(f"{layer}.mlp.up_proj", norm(f"{layer}.post_attention_layernorm", hidden))
        hidden = hidden + linear(f"{layer}.mlp.down_proj", _gegelu(up, config["gegelu_limit"]))
    hidden = norm("model.final_layernorm", hidden)
    return functional.linear(hidden, embedding) / config["mup_width_multiplier"]


def _gegelu(x: Tensor, limit: float) -> Tensor:
    """Gate and linear part alternate in the columns of x; both are clipped."""
    gate, linear = x[..., 0::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(1.702 * gate) * (linear + 1)


def _attention(config: Config, qkv: Tensor, layer: int, max_length: int) -> Tensor:
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["hidden_size"] // num_heads
    parts = split_grouped_qkv(qkv.T, num_kv_heads, head_dim)
    query, key, value = (part.unflatten(0, (-1, head_dim)).transpose(1, 2) for part in parts)
    cos, sin = _rotary_table(config, len(qkv), head_dim, max_length)
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    key, value = (part.repeat_interleave(num_heads // num_kv_heads, dim=0) for part in (key, value))
    scale = head_dim**-0.5
    if config["mup_use_scaling"]:
        scale = config["mup_attn_multiplier"] / head_dim
    scores = query @ key.transpose(1, 2) * scale
    scores = scores.masked_fill(~_visible(config, layer, len(qkv)), -math.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)


def _rotary_table(
    config: Config, length: int, head_dim: int, max_length: int
) -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, head_dim]."""
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    inverse = config["rope_embedding_base"] ** -exponents
    positions = torch.arange(length).float()
    factor = 1.0
    if scaling := config["rope_scaling"]:
        is_long = max_length > scaling["original_max_position_embeddings"]
        kind = "long" if is_long else "short"
        inverse = inverse / torch.tensor(scaling[f"{kind}_factor"])
        factor = scaling[f"{kind}_mscale"]
    else:
        positions = positions / config["rope_position_scale"]
    angles = torch.outer(positions, inverse).repeat(1, 2)
    return angles.cos() * factor, angles.sin() * factor


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _visible(config: Config, layer: int, length: int) -> Tensor:
    """Which key (last axis) each head's query may read: bool [heads, length, length].

    A sparse layer reads the last blocks and every `blocksparse_vert_stride`-th one, which differs
    from head to head unless blocksparse_homo_head_pattern.
    """
    positions = torch.arange(length)
    causal = positions[None, :] <= positions[:, None]
    num_heads = config["num_attention_heads"]
    every = config.get("dense_attention_every_n_layers", 2)
    if every and (layer + 1) % every == 0:
        return causal.expand(num_heads, length, length)
    block = positions // config["blocksparse_block_size"]
    near = block[:, None] - block[None, :] < config["blocksparse_num_local_blocks"]
    stride = config["blocksparse_vert_stride"]
    step = 0 if config["blocksparse_homo_head_pattern"] else max(1, stride // num_heads)
    shifts = torch.arange(num_heads) * step
    vertical = (block[None, :] + shifts[:, None] + 1) % stride == 0
    return causal & (near | vertical[:, None, :])


_LAYOUT = _Dense()

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "phi-3-small-8k-like",
        _PHI_3_SMALL,
        _LAYOUT,
        (
            ("hidden_size", 96),
            ("ff_intermediate_size", 88),
            ("num_hidden_layers", 4),
            ("num_attention_heads", 12),
            ("num_key_value_heads", 1),
            ("vocab_size", 400),
            ("max_position_embeddings", 128),
            ("blocksparse_triton_kernel_block_size", 8),
            ("gegelu_pad_to_256", False),
            ("gegelu_limit", 0.5),
            ("layer_norm_epsilon", 0.3),
            ("blocksparse_block_size", 32),
            ("blocksparse_homo_head_pattern", True),
            ("blocksparse_num_local_blocks", 2),
            ("blocksparse_vert_stride", 3),
            ("blocksparse_vert_stride", 13),
            ("dense_attention_every_n_layers", 3),
            ("dense_attention_every_n_layers", None),
            ("dense_attention_every_n_layers", REMOVED),
            ("mup_attn_multiplier", 1.0),
            ("mup_embedding_multiplier", 10.0),
            ("mup_use_scaling", False),
            ("mup_width_multiplier", 8.0),
            ("rope_embedding_base", 700),
            ("rope_position_scale", 4.0),
        ),
        rejected=(
            ("hidden_act", "gelu"),
            ("blocksparse_block_size", 8),
            ("ff_dim_multiplier", 4),
            ("tie_word_embeddings", False),
        ),
    ),
    Variant(
        "phi-3-small-128k-like",
        {**_PHI_3_SMALL, "rope_scaling": _LONG_ROPE},
        _LAYOUT,
        (("rope_position_scale", 4.0), ("rope_scaling", {**_LONG_ROPE, "long_mscale": 0.7})),
        rejected=(("rope_scaling", {**_LONG_ROPE, "long_factor": [1.0] * 5}),),
    ),
)
