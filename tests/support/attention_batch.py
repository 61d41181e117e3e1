"""Batches for attention back ends: a paged cache full of poison but for the batch's own tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from support.paged import make_metadata
from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.kv_entry import KVEntry
from taco_kernels.kv_format import KVFormat
from taco_kernels.reference.attention import paged_attention
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata

SCALE = 0.2
# The layer that is read, between two others.
LAYER = 1


@dataclass(frozen=True)
class Batch:
    """Attributes:
    lens: (context, query) of each sequence.
    num_blocks: of the cache; block 0 stays unused.
    """

    lens: list[tuple[int, int]]
    num_kv_heads: int = 1
    group_size: int = 2
    head_dim: int = 8
    block_size: int = 16
    window: int | None = None
    cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False
    log_n: int | None = None
    sparse: BlockSparse | None = None
    value_dim: int | None = None
    is_latent: bool = False
    seed: int = 0
    num_blocks: int = 40

    def options(self) -> AttentionOptions:
        slopes = 0.5 ** torch.arange(1.0, self.num_kv_heads * self.group_size + 1)
        return AttentionOptions(
            SCALE,
            window=self.window,
            cap=self.cap,
            alibi=slopes if self.has_alibi else None,
            sinks=2 - 8 * slopes if self.has_sinks else None,
            log_n=self.log_n,
            block_sparse=self.sparse,
        )

    def entry(self) -> KVEntry:
        value_dim = self.value_dim or self.head_dim
        return KVEntry(self.num_kv_heads, self.head_dim, value_dim, self.is_latent)

    def tables(self) -> list[list[int]]:
        counts = [-(-sum(lens) // self.block_size) for lens in self.lens]
        deck = random.Random(self.seed).sample(range(1, self.num_blocks), sum(counts))
        return [[deck.pop() for _ in range(count)] for count in counts]

    def metadata(self) -> AttentionMetadata:
        """Block tables are filled past a sequence's end with a block that no sequence has."""
        metadata = make_metadata(
            [query for _, query in self.lens],
            [context + query for context, query in self.lens],
            self.tables(),
            self.block_size,
        )
        return replace(metadata, block_tables=metadata.block_tables.clamp(min=0))

    def alone(self, sequence: int) -> AttentionMetadata:
        """The metadata of one sequence on its own."""
        context, query = self.lens[sequence]
        table = self.tables()[sequence]
        return make_metadata([query], [context + query], [table], self.block_size)

    def query(self, dtype: torch.dtype = torch.float32) -> Tensor:
        num_tokens = sum(query for _, query in self.lens)
        num_heads = self.num_kv_heads * self.group_size
        return torch.randn(num_tokens, num_heads, self.head_dim).to(dtype)

    def empty_cache(self, kv_format: KVFormat) -> KVCache:
        return KVCache(
            (self.entry(),) * 3,
            self.num_blocks,
            self.block_size,
            kv_format,
            torch.get_default_device(),
        )

    def cache(self, dtype: torch.dtype = torch.float32) -> KVCache:
        """Every sequence's whole KV, and poison wherever no sequence has any."""
        cache = self.empty_cache(KVFormat(dtype))
        positions = [torch.arange(sum(lens)) for lens in self.lens]
        tables = [torch.tensor(table) for table in self.tables()]
        blocks = torch.cat(
            [t[p // self.block_size] for t, p in zip(tables, positions, strict=True)]
        )
        offsets = torch.cat(positions) % self.block_size
        stored = (cache.key(LAYER),) if self.is_latent else (cache.key(LAYER), cache.value(LAYER))
        for memory in stored:
            memory.fill_(torch.nan)
            kv = torch.randn(blocks.numel(), *memory.shape[2:])
            memory.index_put_((blocks, offsets), kv.to(dtype))
        return cache

    def reference(self, query: Tensor, cache: KVCache, metadata: AttentionMetadata) -> Tensor:
        return paged_attention(
            query,
            cache.key(LAYER),
            cache.value(LAYER),
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_tables,
            self.options(),
        )
