"""The demo models in plain torch: Llama's decoder, small, with tied embeddings.

Parameter names are Hugging Face's own, so that exporting a checkpoint is saving its state_dict.
The tests hold the logits against ``transformers.LlamaForCausalLM``.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one decoder, under the names of Hugging Face's LlamaConfig."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int = 4096
    head_dim: int = 64
    max_position_embeddings: int = 1024
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5


TARGET = ModelShape(
    hidden_size=384,
    intermediate_size=832,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
)
DRAFT = ModelShape(
    hidden_size=128,
    intermediate_size=320,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
SHAPES = {"demo": TARGET, "demo-draft": DRAFT}


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        query_size = shape.num_attention_heads * shape.head_dim
        key_value_size = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, key_value_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, key_value_size, bias=False)
        self.o_proj = nn.Linear(query_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        rows, length, _ = hidden.shape
        query, key, value = (
            projection(hidden).view(rows, length, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, rotary), rotate(key, rotary)
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(attended.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    """SwiGLU feed-forward (Shazeer 2020)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.mlp = MLP(shape)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)


class CausalLM(nn.Module):
    """A Llama-architecture language model whose output layer is its embedding, transposed."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            # Layers that add to the residual stream start smaller in deeper models (GPT-2).
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.data.mul_((2 * shape.num_hidden_layers) ** -0.5)

    def hidden_states(self, token_ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Final hidden states (rows, length, hidden_size).

        token_ids and positions are (rows, length); mask is (rows, 1, length, length) and true
        where a token may look, or None for plain causal attention.
        """
        hidden = self.model.embed_tokens(token_ids)
        rotary = rotary_tables(positions, self.shape)
        for layer in self.model.layers:
            hidden = layer(hidden, rotary, mask)
        return self.model.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits (rows, length, vocab_size) of whole sequences that start at position 0."""
        positions = torch.arange(token_ids.shape[1]).expand_as(token_ids)
        return self.logits(self.hidden_states(token_ids, positions, None))


def rotary_tables(positions: Tensor, shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (rows, 1, length, head_dim), in fp32."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = positions[..., None].float() * shape.rope_theta**-exponents
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding in Hugging Face's half-split layout (RoFormer, Su et al. 2021)."""
    cosines, sines = (table.to(heads.dtype) for table in rotary)
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
