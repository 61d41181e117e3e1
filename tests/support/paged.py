"""Runs a decoder over paged KV without a scheduler: blocks are dealt from a shuffled deck."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.kv_memory import KVCache
from taco_worker.models.decoder import Decoder


def make_metadata(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
) -> AttentionMetadata:
    """Metadata for sequences of `seq_lens` tokens of which the last `query_lens` are new."""
    width = max(len(table) for table in block_tables)
    padded = [[*table, *[-1] * (width - len(table))] for table in block_tables]
    slots = [
        table[position // block_size] * block_size + position % block_size
        for table, query_len, seq_len in zip(block_tables, query_lens, seq_lens, strict=True)
        for position in range(seq_len - query_len, seq_len)
    ]
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return AttentionMetadata(
        query_start_loc=starts.int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.tensor(padded, dtype=torch.int32),
        kv_slot_mapping=torch.tensor(slots, dtype=torch.int64),
        query_lens_host=list(query_lens),
        seq_lens_host=list(seq_lens),
    )


class PagedRunner:
    """Feeds chunks of token ids of any number of sequences to a decoder."""

    def __init__(
        self, decoder: Decoder, *, num_blocks: int = 64, block_size: int = 16, seed: int = 0
    ) -> None:
        config = decoder.config
        self._decoder = decoder
        self._kv_cache = KVCache(
            config.num_layers,
            num_blocks,
            block_size,
            config.num_kv_heads,
            config.head_dim,
            decoder.dtype,
            decoder.device,
        )
        self._free_blocks = random.Random(seed).sample(range(num_blocks), num_blocks)
        self._block_tables: dict[str, list[int]] = {}
        self._seq_lens: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, chunks: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """One forward pass: each sequence's next tokens to their logits [num_tokens, vocab]."""
        positions: list[int] = []
        for name, token_ids in chunks.items():
            context_len = self._seq_lens.get(name, 0)
            self._seq_lens[name] = context_len + len(token_ids)
            positions += range(context_len, self._seq_lens[name])
            table = self._block_tables.setdefault(name, [])
            while len(table) * self._kv_cache.block_size < self._seq_lens[name]:
                table.append(self._free_blocks.pop())
        query_lens = [len(token_ids) for token_ids in chunks.values()]
        metadata = make_metadata(
            query_lens,
            [self._seq_lens[name] for name in chunks],
            [self._block_tables[name] for name in chunks],
            self._kv_cache.block_size,
        )
        batch = torch.tensor([token for chunk in chunks.values() for token in chunk])
        hidden = self._decoder(batch, torch.tensor(positions), self._kv_cache, metadata)
        logits = self._decoder.compute_logits(hidden)
        return dict(zip(chunks, logits.split(query_lens), strict=True))
