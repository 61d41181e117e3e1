"""A decoder-only transformer with learned positions, pre-normalization and tied embeddings."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a transformer.

    Attributes:
        vocabulary: number of tokens.
        context: largest length of a row.
        width: of hidden states; a multiple of `heads`.
    """

    vocabulary: int = 4096
    context: int = 64
    width: int = 256
    layers: int = 4
    heads: int = 4


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attention_output = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        rows, length, width = hidden.shape
        parts = self.queries_keys_values(self.attention_norm(hidden))
        parts = parts.view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.attention_output(mixed.transpose(1, 2).flatten(2))
        output: Tensor = hidden + self.mlp(hidden)
        return output


class Transformer(nn.Module):
    """4.2 million parameters in the default shape.

    Args:
        shape: sizes.
    """

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        shape = shape or Shape()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.layers = nn.Sequential(*(_Layer(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits, shape (rows, length, vocabulary), of token ids, shape (rows, length)."""
        places = torch.arange(token_ids.shape[1], device=token_ids.device)
        hidden = self.tokens(token_ids) + self.positions(places)
        return F.linear(self.norm(self.layers(hidden)), self.tokens.weight)
