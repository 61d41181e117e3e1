"""The torch back end against the naive reference, on batches that hypothesis thinks up."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.paged import make_metadata
from taco_kernels.reference.attention import paged_attention
from taco_worker.attention.backend import create_attention_backend
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.torch_backend import TorchAttention
from taco_worker.kv_memory import KVCache

SCALE = 0.2
# Enough blocks that ids are large beside the numbers of sequences and tokens.
NUM_BLOCKS = 3000


@dataclass(frozen=True)
class Batch:
    lens: list[tuple[int, int]]  # (context, query) per sequence
    num_kv_heads: int
    group_size: int
    head_dim: int
    block_size: int
    window: int | None
    seed: int


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    query_len = st.one_of(st.just(1), st.integers(1, 20))
    lens = draw(st.lists(st.tuples(st.integers(0, 90), query_len), min_size=1, max_size=6))
    return Batch(
        lens=lens,
        num_kv_heads=draw(st.integers(1, 3)),
        group_size=draw(st.integers(1, 4)),
        head_dim=draw(st.sampled_from([8, 20])),
        block_size=draw(st.sampled_from([8, 16, 32])),
        window=draw(st.one_of(st.none(), st.integers(1, 40))),
        seed=draw(st.integers(0, 1000)),
    )


def _tables(batch: Batch) -> list[list[int]]:
    counts = [-(-sum(lens) // batch.block_size) for lens in batch.lens]
    deck = random.Random(batch.seed).sample(range(NUM_BLOCKS), sum(counts))
    return [[deck.pop() for _ in range(count)] for count in counts]


def _cache(batch: Batch, dtype: torch.dtype = torch.float32) -> KVCache:
    return KVCache(
        1,
        NUM_BLOCKS,
        batch.block_size,
        batch.num_kv_heads,
        batch.head_dim,
        dtype,
        torch.device("cpu"),
    )


def _metadata(batch: Batch, tables: list[list[int]]) -> AttentionMetadata:
    return make_metadata(
        [query for _, query in batch.lens],
        [context + query for context, query in batch.lens],
        tables,
        batch.block_size,
    )


def _random_kv(batch: Batch, num_tokens: int) -> tuple[Tensor, Tensor]:
    key, value = torch.randn(2, num_tokens, batch.num_kv_heads, batch.head_dim)
    return key, value


def _fill(batch: Batch, tables: list[list[int]], cache: KVCache) -> AttentionMetadata:
    """Write every sequence's whole KV, poison what no sequence owns; the step's metadata."""
    cache.key(0).fill_(torch.nan)
    cache.value(0).fill_(torch.inf)
    seq_lens = [sum(lens) for lens in batch.lens]
    everything = make_metadata(seq_lens, seq_lens, tables, batch.block_size)
    TorchAttention().write_kv(*_random_kv(batch, sum(seq_lens)), cache, 0, everything)
    return _metadata(batch, tables)


def _reference(query: Tensor, cache: KVCache, metadata: AttentionMetadata, batch: Batch) -> Tensor:
    return paged_attention(
        query,
        cache.key(0),
        cache.value(0),
        metadata.query_start_loc,
        metadata.seq_lens,
        metadata.block_tables,
        SCALE,
        batch.window,
    )


@given(batches())
@settings(max_examples=60, deadline=None)
def test_agrees_with_the_reference(batch: Batch) -> None:
    torch.manual_seed(batch.seed)
    cache = _cache(batch)
    metadata = _fill(batch, _tables(batch), cache)
    num_tokens = sum(metadata.query_lens_host)
    query = torch.randn(num_tokens, batch.num_kv_heads * batch.group_size, batch.head_dim)
    actual = TorchAttention().attend(query, cache, 0, metadata, SCALE, batch.window)
    torch.testing.assert_close(
        actual, _reference(query, cache, metadata, batch), atol=1e-5, rtol=1e-5
    )


@given(batches())
@settings(max_examples=40, deadline=None)
def test_neighbours_change_no_bit(batch: Batch) -> None:
    torch.manual_seed(batch.seed)
    cache = _cache(batch)
    tables = _tables(batch)
    metadata = _fill(batch, tables, cache)
    query = torch.randn(
        sum(metadata.query_lens_host), batch.num_kv_heads * batch.group_size, batch.head_dim
    )
    together = TorchAttention().attend(query, cache, 0, metadata, SCALE, batch.window)
    rows = together.split(metadata.query_lens_host)
    queries = query.split(metadata.query_lens_host)
    for lens, table, own_query, own_rows in zip(batch.lens, tables, queries, rows, strict=True):
        alone_metadata = make_metadata([lens[1]], [sum(lens)], [table], batch.block_size)
        alone = TorchAttention().attend(own_query, cache, 0, alone_metadata, SCALE, batch.window)
        assert torch.equal(alone, own_rows)


@given(batches())
@settings(max_examples=30, deadline=None)
def test_write_kv_touches_only_its_slots(batch: Batch) -> None:
    torch.manual_seed(batch.seed)
    cache = _cache(batch)
    for stored in (cache.key(0), cache.value(0)):
        stored.zero_()
    metadata = _metadata(batch, _tables(batch))
    num_tokens = sum(metadata.query_lens_host)
    key, value = _random_kv(batch, num_tokens)
    TorchAttention().write_kv(key, value, cache, 0, metadata)
    for stored, written in ((cache.key(0), key), (cache.value(0), value)):
        rows = stored.flatten(0, 1)
        assert torch.equal(rows[metadata.kv_slot_mapping], written)
        assert int(rows.flatten(1).any(dim=1).sum()) == num_tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_accumulate_in_float32(dtype: torch.dtype) -> None:
    """Over 2,000 tokens of near-equal weight a narrow sum would drift or stop growing."""
    batch = Batch([(1999, 1), (1900, 100)], 2, 2, 16, 16, None, seed=0)
    torch.manual_seed(0)
    cache = _cache(batch, dtype)
    tables = _tables(batch)
    seq_lens = [sum(lens) for lens in batch.lens]
    key, value = _random_kv(batch, sum(seq_lens))
    TorchAttention().write_kv(
        key.to(dtype),
        (value + 1).to(dtype),
        cache,
        0,
        make_metadata(seq_lens, seq_lens, tables, batch.block_size),
    )
    metadata = _metadata(batch, tables)
    query = (torch.randn(101, 4, 16) * 0.1).to(dtype)
    actual = TorchAttention().attend(query, cache, 0, metadata, SCALE, None)
    rows = [0, 1, 50, 100]
    wide_query = query.float()
    expected = torch.cat(
        [
            _dense(wide_query[row], cache, tables[row > 0], 2000 if row == 0 else 1900 + row)
            for row in rows
        ]
    )
    torch.testing.assert_close(actual[rows].float(), expected, atol=1e-2, rtol=1e-2)


def _dense(query: Tensor, cache: KVCache, table: list[int], seq_len: int) -> Tensor:
    keys, values = (
        layer[table].flatten(0, 1)[:seq_len].float().repeat_interleave(2, dim=1)
        for layer in (cache.key(0), cache.value(0))
    )
    weights = torch.einsum("hd,lhd->hl", query, keys).mul(SCALE).softmax(dim=-1)
    return torch.einsum("hl,lhd->hd", weights, values).unsqueeze(0)


def test_layers_with_different_windows_share_metadata() -> None:
    batch = Batch([(40, 1), (10, 30)], 1, 2, 8, 8, None, seed=3)
    torch.manual_seed(3)
    cache = _cache(batch)
    metadata = _fill(batch, _tables(batch), cache)
    query = torch.randn(31, 2, 8)
    backend = TorchAttention()
    for window in (None, 6, None, 17):
        windowed = Batch(**{**vars(batch), "window": window})
        actual = backend.attend(query, cache, 0, metadata, SCALE, window)
        torch.testing.assert_close(
            actual, _reference(query, cache, metadata, windowed), atol=1e-5, rtol=1e-5
        )


def test_unknown_back_end_is_named() -> None:
    with pytest.raises(ValueError, match=r"'flash'; known: torch"):
        create_attention_backend("flash")
