"""The decoder-only transformer that every recipe configures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taco_worker.attention.backend import AttentionBackend
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.kv_memory import KVCache
from taco_worker.layers.attention import Attention
from taco_worker.layers.embedding import Embedding
from taco_worker.layers.linear import Linear
from taco_worker.layers.mlp import MLP, GatedMLP
from taco_worker.layers.norm import LayerNorm, RMSNorm
from taco_worker.layers.rotary import RotaryEmbedding
from taco_worker.models.decoder_config import DecoderConfig, LearnedPositions


class Decoder(nn.Module):
    """Token ids to hidden states over a paged KV cache, and hidden states to logits.

    Parameters are allocated and not initialised: the loader fills them. Nothing here records
    gradients; callers run it under `torch.inference_mode()`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.device = device
        self.embed_tokens = Embedding(
            config.vocab_size, config.embedding_size, dtype=dtype, device=device
        )
        self.embed_in_proj: Linear | None = None
        self.embed_out_proj: Linear | None = None
        if config.embedding_size != config.hidden_size:
            narrow, wide = config.embedding_size, config.hidden_size
            self.embed_in_proj = Linear(narrow, wide, bias=False, dtype=dtype, device=device)
            self.embed_out_proj = Linear(wide, narrow, bias=False, dtype=dtype, device=device)

        self.embed_positions: Embedding | None = None
        self.rotary: RotaryEmbedding | None = None
        self._position_offset = 0
        if isinstance(config.positions, LearnedPositions):
            self._position_offset = config.positions.offset
            num_rows = config.positions.size + config.positions.offset
            self.embed_positions = Embedding(
                num_rows, config.hidden_size, dtype=dtype, device=device
            )
        else:
            self.rotary = RotaryEmbedding(config.positions, config.head_dim, device)

        self.layers = nn.ModuleList(
            DecoderLayer(config, layer, backend, dtype=dtype, device=device)
            for layer in range(config.num_layers)
        )
        self.final_norm = _make_norm(config, dtype, device) if config.final_norm else None
        self.lm_head: Linear | None = None
        if not config.tied_embeddings:
            self.lm_head = Linear(
                config.embedding_size, config.vocab_size, bias=False, dtype=dtype, device=device
            )

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_cache: KVCache,
        attn_metadata: AttentionMetadata,
    ) -> Tensor:
        """Run one step and write its keys and values into `kv_cache`.

        Args:
            token_ids, positions: integers [num_tokens], sequence after sequence.

        Returns:
            Hidden states [num_tokens, hidden_size], after the final norm.
        """
        hidden = self.embed_tokens(token_ids)
        if self.embed_in_proj is not None:
            hidden = self.embed_in_proj(hidden)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions(positions + self._position_offset)
        rotary = self.rotary.cos_sin(positions) if self.rotary is not None else None
        for layer in self.layers:
            hidden = layer(hidden, rotary, kv_cache, attn_metadata)
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [num_rows, hidden_size] to float32 logits [num_rows, vocab_size]."""
        if self.embed_out_proj is not None:
            hidden = self.embed_out_proj(hidden)
        if self.lm_head is not None:
            return self.lm_head(hidden).float()
        return F.linear(hidden, self.embed_tokens.weight).float()


class DecoderLayer(nn.Module):
    """Attention, then MLP, each with a norm and a residual."""

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        backend: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attn_norm = _make_norm(config, dtype, device)
        self.attn = Attention(config, layer, backend, dtype=dtype, device=device)
        self.mlp_norm = _make_norm(config, dtype, device)
        mlp_class = GatedMLP if config.gated_mlp else MLP
        self.mlp = mlp_class(config, dtype=dtype, device=device)

    def forward(
        self,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor] | None,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> Tensor:
        if self.pre_norm:
            hidden = hidden + self.attn(self.attn_norm(hidden), rotary, kv_cache, metadata)
            return hidden + self.mlp(self.mlp_norm(hidden))
        hidden = self.attn_norm(hidden + self.attn(hidden, rotary, kv_cache, metadata))
        return self.mlp_norm(hidden + self.mlp(hidden))


def _make_norm(
    config: DecoderConfig, dtype: torch.dtype, device: torch.device
) -> RMSNorm | LayerNorm:
    norm_class = RMSNorm if config.norm == "rms" else LayerNorm
    return norm_class(config.hidden_size, config.norm_eps, dtype=dtype, device=device)
