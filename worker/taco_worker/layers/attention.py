"""The attention block of a decoder layer: QKV projection, rotary positions, attention, output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taco_kernels.attention_options import AttentionOptions
from taco_worker.attention.backend import AttentionBackend, require_support
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.layers.linear import Linear
from taco_worker.layers.ops import LayerOps
from taco_worker.models.decoder_config import DecoderConfig


class Attention(nn.Module):
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
        self.layer = layer
        self.backend = backend
        self.ops = ops
        self.head_dim = config.head_dim
        self.options = AttentionOptions(
            config.attention_scale, window=config.sliding_windows[layer]
        )
        require_support(backend, self.options, config.kv_entries[layer])
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.qkv_proj = Linear(
            config.hidden_size,
            (config.num_heads + 2 * config.num_kv_heads) * config.head_dim,
            bias=config.qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.out_proj = Linear(
            config.num_heads * config.head_dim,
            config.hidden_size,
            bias=config.attn_out_bias,
            dtype=dtype,
            device=device,
        )

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """`cos_sin`: the table of all positions; None without rotary positions."""
        heads = self.qkv_proj(hidden).view(hidden.shape[0], -1, self.head_dim)
        query, key, value = heads.split(
            (self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1
        )
        cache = kv_cache.key(self.layer), kv_cache.value(self.layer)
        if cos_sin is None:
            self.ops.write_kv(key, value, *cache, metadata.kv_slot_mapping)
        else:
            self.ops.rotate_and_write_kv(
                query, key, value, positions, cos_sin, *cache, metadata.kv_slot_mapping
            )
        output = self.backend.attend(query, kv_cache, self.layer, metadata, self.options)
        return self.out_proj(output.flatten(1))
