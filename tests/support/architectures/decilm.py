"""DeciLM and Nemotron-NAS, computed by Llama with repeated KV heads and padded MLPs.

Sources: modeling_decilm.py of nvidia/Llama-3_3-Nemotron-Super-49B-v1 and Deci/DeciLM-7B, and vLLM's
vllm/model_executor/models/nemotron_nas.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.architectures.llama import LLAMA, LLAMA_FIELDS
from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import REMOVED, Tensors, Variant

_NO_ATTENTION = {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}
_NO_MLP = {"ffn_mult": None, "no_op": True, "replace_with_linear": False}


def _block(group: int | None, factor: float | None, **options: Any) -> dict[str, Any]:
    """A layer's options; `options` are of its MLP."""
    attention = {
        "n_heads_in_group": group,
        "no_op": False,
        "num_sink_tokens": None,
        "replace_with_linear": False,
        "sparsify": None,
        "unshifted_sink": False,
        "window_length": None,
    }
    mlp = {"ffn_mult": factor, "no_op": False, "replace_with_linear": False, "sparsify": None}
    return {
        "attention": _NO_ATTENTION if group is None else attention,
        "ffn": _NO_MLP if factor is None else {**mlp, **options},
    }


def _with(name: str, option: str, value: Any) -> tuple[str, Any]:
    """Another value of an option of the first layer's attention or MLP."""
    first = _block(3, 6.0)
    return "block_configs", [{**first, name: {**first[name], option: value}}, *_BLOCKS[1:]]


_BLOCKS = [_block(3, 6.0), _block(None, 4.5), _block(2, None), _block(6, 1.0)]
_LLAMA: dict[str, Any] = {**LLAMA, "attention_bias": False, "mlp_bias": False}
_NAS: dict[str, Any] = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "nemotron-nas",
    **_LLAMA,
    "num_hidden_layers": 4,
    "num_key_value_heads": None,
    "intermediate_size": None,
    "block_configs": _BLOCKS,
}
_DECI: dict[str, Any] = {
    "architectures": ["DeciLMForCausalLM"],
    "model_type": "deci",
    **{name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"},
    "num_key_value_heads_per_layer": [3, 1],
}


def _kv_heads(config: Config, layer: int) -> int | None:
    if "num_key_value_heads_per_layer" in config:
        return int(config["num_key_value_heads_per_layer"][layer])
    group = config["block_configs"][layer]["attention"]["n_heads_in_group"]
    return None if group is None else int(config["num_attention_heads"] // group)


def _inner_size(config: Config, layer: int) -> int | None:
    if "num_key_value_heads_per_layer" in config:
        return int(config["intermediate_size"])
    options = config["block_configs"][layer]["ffn"]
    if options["no_op"]:
        return None
    if size := options.get("intermediate_size"):
        return int(size)
    size = int(2 * options["ffn_mult"] * config["hidden_size"] / 3)
    return size + -size % 256


def _head_dim(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _shapes(config: Config) -> Shapes:
    hidden, head_dim = config["hidden_size"], _head_dim(config)
    width = config["num_attention_heads"] * head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        modules: Shapes = {}
        if heads := _kv_heads(config, index):
            shapes[f"{layer}.input_layernorm.weight"] = (hidden,)
            for name, size in (("q", width), ("k", heads * head_dim), ("v", heads * head_dim)):
                modules[f"{layer}.self_attn.{name}_proj"] = (size, hidden)
            modules[f"{layer}.self_attn.o_proj"] = (hidden, width)
        if inner := _inner_size(config, index):
            shapes[f"{layer}.post_attention_layernorm.weight"] = (hidden,)
            for name in ("gate", "up"):
                modules[f"{layer}.mlp.{name}_proj"] = (inner, hidden)
            modules[f"{layer}.mlp.down_proj"] = (hidden, inner)
        for name, shape in modules.items():
            shapes[f"{name}.weight"] = shape
            if config["attention_bias" if ".self_attn." in name else "mlp_bias"]:
                shapes[f"{name}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _largest(config: Config) -> int:
    sizes = [_inner_size(config, index) for index in range(config["num_hidden_layers"])]
    return max(size for size in sizes if size is not None)


def _as_llama(config: Config, max_model_len: int | None) -> dict[str, Any]:
    return {
        **config,
        "model_type": "llama",
        "num_key_value_heads": config["num_attention_heads"],
        "intermediate_size": _largest(config),
    }


def _weights(config: Config, tensors: Tensors) -> Tensors:
    """A block that a layer lacks has output weights of 0, so that it adds nothing."""
    wide = {**config, "block_configs": [_block(1, 1.0)] * config["num_hidden_layers"]}
    wide.pop("num_key_value_heads_per_layer", None)
    inner, head_dim = _largest(config), _head_dim(config)
    for block in wide["block_configs"]:
        block["ffn"]["intermediate_size"] = inner
    return {
        name: _padded(tensors.get(name), shape, config["num_attention_heads"] * head_dim, head_dim)
        for name, shape in _shapes(wide).items()
    }


def _padded(tensor: Tensor | None, shape: tuple[int, ...], width: int, head_dim: int) -> Tensor:
    if tensor is None:
        return torch.zeros(shape)
    if tensor.shape == shape:
        return tensor
    if shape[0] == width > tensor.shape[0]:  # keys or values
        heads = tensor.unflatten(0, (-1, head_dim))
        return heads.repeat_interleave(width // tensor.shape[0], dim=0).flatten(0, 1)
    result = torch.zeros(shape)
    result[tuple(slice(size) for size in tensor.shape)] = tensor
    return result


_LAYOUT = Relaid("LlamaForCausalLM", _shapes, _as_llama, _weights)
_DEPTH_FIELDS = ("intermediate_size", "num_key_value_heads", "num_hidden_layers", "pretraining_tp")
_FIELDS: tuple[tuple[str, Any], ...] = (
    *(field for field in LLAMA_FIELDS if field[0] not in _DEPTH_FIELDS),
    ("attention_bias", True),
    ("mlp_bias", True),
    ("head_dim", 20),
    ("rms_norm_eps", REMOVED),
)
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("num_hidden_layers", 1),
    ("partial_rotary_factor", 0.5),
    ("position_embedding_type", "rope_llama4"),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "nemotron-nas-like",
        _NAS,
        _LAYOUT,
        (
            *_FIELDS,
            ("num_key_value_heads", 3),
            ("intermediate_size", 88),
            ("block_configs", [_block(None, None), *_BLOCKS[1:]]),
            ("block_configs", [_block(1, 9.0), *_BLOCKS[1:]]),
            _with("ffn", "intermediate_size", 88),
            _with("ffn", "gated", True),
        ),
        rejected=(
            *_REJECTED,
            ("block_configs", [*_BLOCKS, _BLOCKS[0]]),
            _with("attention", "replace_with_linear", True),
            _with("attention", "window_length", 8),
            _with("attention", "num_sink_tokens", 4),
            _with("attention", "n_heads_in_group", 4),
            _with("ffn", "replace_with_linear", True),
            _with("ffn", "gated", False),
            _with("ffn", "hidden_act", "unknown"),
        ),
    ),
    Variant(
        "decilm-7b-like",
        _DECI,
        _LAYOUT,
        (
            *_FIELDS,
            ("intermediate_size", 88),
            ("num_key_value_heads_per_layer", [2, 6]),
        ),
        rejected=(
            *_REJECTED,
            ("num_key_value_heads_per_layer", [4, 1]),
            ("num_key_value_heads_per_layer", [1, 2, 3]),
        ),
    ),
)
