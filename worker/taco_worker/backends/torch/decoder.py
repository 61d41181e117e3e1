"""The decoder-only transformer in torch, which every recipe configures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taco_worker.attention.backend import AttentionBackend
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.layers.attention import Attention
from taco_worker.layers.embedding import Embedding
from taco_worker.layers.linear import Linear
from taco_worker.layers.mlp import MLP, GatedMLP
from taco_worker.layers.norm import LayerNorm, RMSNorm
from taco_worker.layers.ops import LayerOps
from taco_worker.layers.rotary import cos_sin_table
from taco_worker.models.decoder_config import DecoderConfig, LearnedPositions


class Decoder(nn.Module):
    """Computes hidden states from token ids over a paged KV cache, and logits from hidden states.

    Parameters are allocated but not initialised: the loader fills them. Callers run the decoder
    under `torch.inference_mode()`.

    Attributes:
        kept_layers: layers whose outputs `forward` also returns, in this order.
    """

    def __init__(
        self,
        config: DecoderConfig,
        backend: AttentionBackend,
        ops: LayerOps,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_host_layers: int = 0,
    ) -> None:
        """`num_host_layers`: the last layers with weights on the host; see weight_offload."""
        super().__init__()
        self.config = config
        self.supports_trees = backend.supports_trees
        self.dtype = dtype
        self.device = device
        self.kept_layers: tuple[int, ...] = ()
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
        self._position_offset = 0
        if isinstance(config.positions, LearnedPositions):
            self._position_offset = config.positions.offset
            num_rows = config.positions.size + config.positions.offset
            self.embed_positions = Embedding(
                num_rows, config.hidden_size, dtype=dtype, device=device
            )
        self._cos_sin: Tensor | None = None

        first_on_host = config.num_layers - num_host_layers
        self.layers = nn.ModuleList(
            DecoderLayer(
                config,
                layer,
                backend,
                ops,
                dtype=dtype,
                device=device if layer < first_on_host else torch.device("cpu"),
            )
            for layer in range(config.num_layers)
        )
        self.final_norm = _make_norm(config, ops, dtype, device) if config.final_norm else None
        self.lm_head: Linear | None = None
        if not config.tied_embeddings:
            self.lm_head = Linear(
                config.embedding_size, config.vocab_size, bias=False, dtype=dtype, device=device
            )

    def prepare_positions(self, num_positions: int) -> None:
        """Compute the rotary angles of `num_positions` positions; call it before `forward`."""
        if not isinstance(self.config.positions, LearnedPositions):
            self._cos_sin = cos_sin_table(
                self.config.positions, self.config.head_dim, num_positions, self.device
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
            Hidden states after the final norm, then the outputs of `kept_layers`,
            [num_tokens, (1 + len(kept_layers)) * hidden_size].
        """
        x = self.embed_tokens(token_ids)
        if self.embed_in_proj is not None:
            x = self.embed_in_proj(x)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions + self._position_offset)
        residual = None
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            x, residual = layer(x, residual, positions, self._cos_sin, kv_cache, attn_metadata)
            if index in self.kept_layers:
                kept[index] = x.clone() if residual is None else x + residual
        if self.final_norm is not None:
            x = self.final_norm(x, residual)
        elif residual is not None:
            x = residual.add_(x)
        if not kept:
            return x
        return torch.cat([x, *(kept[index] for index in self.kept_layers)], dim=1)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [num_rows, hidden_size] to float32 logits [num_rows, vocab_size]."""
        return self.project(hidden).float()

    def project(self, hidden: Tensor) -> Tensor:
        """The logits of `hidden` in the model's dtype."""
        if self.embed_out_proj is not None:
            hidden = self.embed_out_proj(hidden)
        if self.lm_head is not None:
            return self.lm_head(hidden)
        return F.linear(hidden, self.embed_tokens.weight)


class DecoderLayer(nn.Module):
    """Attention, then MLP, each with a norm and a residual.

    In pre-norm models the following norm adds a block's output to the residual, so that the sum is
    read and written once.
    """

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        backend: AttentionBackend,
        ops: LayerOps,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attn_norm = _make_norm(config, ops, dtype, device)
        self.attn = Attention(config, layer, backend, ops, dtype=dtype, device=device)
        self.mlp_norm = _make_norm(config, ops, dtype, device)
        self.mlp: MLP | GatedMLP
        if config.gated_mlp:
            self.mlp = GatedMLP(config, ops, dtype=dtype, device=device)
        else:
            self.mlp = MLP(config, dtype=dtype, device=device)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        positions: Tensor,
        cos_sin: Tensor | None,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor | None]:
        """x and residual as the layer before returned them; their sum is the hidden state."""
        if not self.pre_norm:
            attended = self.attn(x, positions, cos_sin, kv_cache, metadata)
            x = self.attn_norm(attended, residual=x)
            return self.mlp_norm(self.mlp(x), residual=x), None
        normed = self.attn_norm(x, residual)
        residual = x if residual is None else residual
        attended = self.attn(normed, positions, cos_sin, kv_cache, metadata)
        return self.mlp(self.mlp_norm(attended, residual)), residual


def _make_norm(
    config: DecoderConfig, ops: LayerOps, dtype: torch.dtype, device: torch.device
) -> RMSNorm | LayerNorm:
    norm_class = RMSNorm if config.norm == "rms" else LayerNorm
    return norm_class(config.hidden_size, config.norm_eps, ops, dtype=dtype, device=device)
