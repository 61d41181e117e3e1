"""A Llama in plain float32 torch whose products and KV can be rounded as kernels round them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

# (parameter, x [rows, k], weight [n, k]) to x W^T.
Product = Callable[[str, Tensor, Tensor], Tensor]
# Keys or values [batch, heads, tokens, head_dim] as attention reads them.
RoundKV = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama, named as in config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


@dataclass(frozen=True, slots=True)
class SmallLlama:
    """Parameters in float32 under their names in a checkpoint, with lm_head.weight always present.

    qkv and gate/up are read as one product, as the engine reads them: they share activations.
    """

    shape: Shape
    parameters: Mapping[str, Tensor]

    def logits(self, token_ids: Tensor, product: Product, round_kv: RoundKV | None) -> Tensor:
        """Logits, float32 [batch, tokens, vocab], of token ids [batch, tokens]."""
        parameters, shape = self.parameters, self.shape
        cosines, sines = _rotary(shape, token_ids.shape[1])
        x = parameters["model.embed_tokens.weight"][token_ids]
        for layer in range(shape.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            normed = self._norm(x, prefix + "input_layernorm.weight")
            query, key, value = (
                product(name, normed, parameters[name])
                .unflatten(-1, (-1, shape.head_dim))
                .transpose(1, 2)
                for name in (f"{prefix}self_attn.{part}_proj.weight" for part in "qkv")
            )
            query, key = _rotate(query, cosines, sines), _rotate(key, cosines, sines)
            if round_kv is not None:
                key, value = round_kv(key), round_kv(value)
            mixed = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            name = prefix + "self_attn.o_proj.weight"
            x = x + product(name, mixed.transpose(1, 2).flatten(2), parameters[name])
            normed = self._norm(x, prefix + "post_attention_layernorm.weight")
            gate, up = (
                product(name, normed, parameters[name])
                for name in (f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up"))
            )
            name = prefix + "mlp.down_proj.weight"
            x = x + product(name, F.silu(gate) * up, parameters[name])
        name = "lm_head.weight"
        return product(name, self._norm(x, "model.norm.weight"), parameters[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.parameters[name], self.shape.rms_norm_eps)


def read_llama(folder: Path) -> SmallLlama:
    """Read a Llama's checkpoint of one safetensors file."""
    config = json.loads((folder / "config.json").read_text())
    shape = Shape(**{name: config[name] for name in Shape.__slots__})
    tensors = load_file(folder / "model.safetensors")
    parameters = {name: tensor.float() for name, tensor in tensors.items()}
    parameters.setdefault("lm_head.weight", parameters["model.embed_tokens.weight"])
    return SmallLlama(shape, parameters)


def random_llama(shape: Shape, seed: int) -> SmallLlama:
    """A Llama of normally distributed weights whose activations keep about unit variance."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(n: int, k: int) -> Tensor:
        return torch.randn(n, k, generator=generator) / k**0.5

    hidden, inner, width = shape.hidden_size, shape.intermediate_size, shape.head_dim
    queries, keys = shape.num_attention_heads * width, shape.num_key_value_heads * width
    parameters = {
        "model.embed_tokens.weight": torch.randn(shape.vocab_size, hidden, generator=generator),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": matrix(shape.vocab_size, hidden),
    }
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        sizes = {
            "self_attn.q": (queries, hidden),
            "self_attn.k": (keys, hidden),
            "self_attn.v": (keys, hidden),
            "self_attn.o": (hidden, queries),
            "mlp.gate": (inner, hidden),
            "mlp.up": (inner, hidden),
            "mlp.down": (hidden, inner),
        }
        for name, (n, k) in sizes.items():
            parameters[f"{prefix}{name}_proj.weight"] = matrix(n, k)
        for name in ("input_layernorm", "post_attention_layernorm"):
            parameters[f"{prefix}{name}.weight"] = torch.ones(hidden)
    return SmallLlama(shape, parameters)


def _rotary(shape: Shape, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [tokens, head_dim], for rotations of halves of a head."""
    powers = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
    angles = torch.outer(torch.arange(tokens).float(), shape.rope_theta**-powers)
    angles = torch.cat([angles, angles], dim=1)
    return angles.cos(), angles.sin()


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat([-second, first], dim=-1) * sines
