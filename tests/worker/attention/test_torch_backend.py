"""The torch back end against the naive reference, on batches that hypothesis thinks up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from support.attention_batch import LAYER, SCALE, Batch
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.torch_backend import TorchAttention


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
        num_blocks=3000,  # ids that are large beside the numbers of sequences and tokens
    )


@given(batches())
@settings(max_examples=60, deadline=None)
def test_agrees_with_the_reference(batch: Batch) -> None:
    torch.manual_seed(batch.seed)
    query, cache, metadata = batch.query(), batch.cache(), batch.metadata()
    actual = TorchAttention().attend(query, cache, LAYER, metadata, SCALE, batch.window)
    expected = batch.reference(query, cache, metadata)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@given(batches())
@settings(max_examples=40, deadline=None)
def test_neighbours_change_no_bit(batch: Batch) -> None:
    torch.manual_seed(batch.seed)
    query, cache, metadata = batch.query(), batch.cache(), batch.metadata()
    together = TorchAttention().attend(query, cache, LAYER, metadata, SCALE, batch.window)
    rows, queries = (x.split(metadata.query_lens_host) for x in (together, query))
    for sequence, (own_query, own_rows) in enumerate(zip(queries, rows, strict=True)):
        alone = TorchAttention().attend(
            own_query, cache, LAYER, batch.alone(sequence), SCALE, batch.window
        )
        assert torch.equal(alone, own_rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_accumulate_in_float32(dtype: torch.dtype) -> None:
    """Over 2,000 tokens of near-equal weight a narrow sum would drift or stop growing."""
    batch = Batch([(1999, 1), (1900, 100)], 2, 2, 16, num_blocks=300)
    torch.manual_seed(0)
    cache = batch.cache(dtype)
    cache.value(LAYER).add_(1)
    query = (batch.query() * 0.1).to(dtype)
    actual = TorchAttention().attend(query, cache, LAYER, batch.metadata(), SCALE, None)
    rows = [0, 1, 50, 100]
    wide_query = query.float()
    tables = batch.tables()
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
        for layer in (cache.key(LAYER), cache.value(LAYER))
    )
    weights = torch.einsum("hd,lhd->hl", query, keys).mul(SCALE).softmax(dim=-1)
    return torch.einsum("hl,lhd->hd", weights, values).unsqueeze(0)


class _Operations(TorchDispatchMode):
    """The names of the operations that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("window", [None, 7])
def test_no_operation_needs_a_number_of_the_device(window: int | None) -> None:
    """On a GPU such operations wait until it has done everything that was asked of it before."""
    batch = Batch([(20, 1), (3, 4), (50, 1)], window=window)
    query, cache, metadata = batch.query(), batch.cache(), batch.metadata()
    with _Operations() as operations:
        TorchAttention().attend(query, cache, LAYER, metadata, SCALE, window)
    assert "index_select" in operations.names
    assert not operations.names & {"_local_scalar_dense", "nonzero", "masked_select", "unique"}
