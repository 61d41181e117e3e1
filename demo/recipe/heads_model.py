"""Heads for the demo model under the names of published checkpoints: Medusa and EAGLE.

Both compute logits with the target's embedding, so that they stay small.
"""

from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe.model import MLP, TARGET, Attention, ModelShape, rotary_tables

NUM_MEDUSA_HEADS = 3
EAGLE_SHAPE = replace(TARGET, intermediate_size=256, num_hidden_layers=1)


class ResidualBlock(nn.Module):
    """x + silu(W x + b); it starts as x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.ModuleList):
    """Head k maps the hidden state of token i to one with the logits of token i + 2 + k.

    Parameter names are those of medusa_lm_head.pt: `0.0.linear.weight` and so on.
    """

    def __init__(self, shape: ModelShape = TARGET) -> None:
        blocks = (ResidualBlock(shape.hidden_size) for _ in range(NUM_MEDUSA_HEADS))
        super().__init__(nn.Sequential(block) for block in blocks)


class EagleLayer(nn.Module):
    """Llama's layer without a norm before its attention."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(x, rotary, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(nn.Module):
    """Maps the hidden state of token i and the token i + 1 to the hidden state of token i + 1."""

    def __init__(self, shape: ModelShape = EAGLE_SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size)
        self.layers = nn.ModuleList([EagleLayer(shape)])

    def forward(
        self, embedded: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None
    ) -> Tensor:
        """embedded and features: (rows, length, hidden_size), of tokens i + 1 and of tokens i."""
        x = self.fc(torch.cat((embedded, features), dim=-1))
        return self.layers[0](x, rotary_tables(positions, self.shape), mask)


def medusa_config() -> dict[str, Any]:
    return {
        "base_model_name_or_path": "demo",
        "medusa_num_heads": NUM_MEDUSA_HEADS,
        "medusa_num_layers": 1,
        "original_lm_head": True,
    }


def eagle_config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(EAGLE_SHAPE),
        "hidden_act": "silu",
        "bias": True,
        "torch_dtype": "bfloat16",
    }
