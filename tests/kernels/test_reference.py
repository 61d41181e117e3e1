"""The references against independent implementations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.kv_entry import KVEntry
from taco_kernels.reference.activation import act_mul
from taco_kernels.reference.attention import paged_attention
from taco_kernels.reference.norm import layer_norm, rms_norm

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_agree_with_torch(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(7, 96), torch.randn(96), torch.randn(96)
    x, weight, bias = (x * 3 + 1).to(dtype), weight.to(dtype), bias.to(dtype)
    wide = (x.float(), (96,), weight.float())
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5), F.rms_norm(*wide, eps=1e-5).to(dtype), atol=2e-5, rtol=2e-2
    )
    torch.testing.assert_close(
        layer_norm(x, weight, bias, 1e-5),
        F.layer_norm(*wide, bias.float(), eps=1e-5).to(dtype),
        atol=2e-5,
        rtol=1e-2,
    )


def test_norms_do_not_overflow_in_float16() -> None:
    x = torch.full((1, 64), 60_000.0, dtype=torch.float16)
    weight = torch.ones(64, dtype=torch.float16)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), torch.ones_like(x))


def test_act_mul_takes_the_gate_first() -> None:
    gate, up = torch.randn(4, 6), torch.randn(4, 6)
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(act_mul(torch.cat((gate, up), dim=-1)), expected)


def test_paged_attention_of_one_token_is_its_value() -> None:
    key_cache, value_cache = torch.randn(2, 4, 8, 2, 16)
    query = torch.randn(1, 4, 16)
    output = paged_attention(
        query,
        key_cache,
        value_cache,
        query_start_loc=torch.tensor([0, 1]),
        seq_lens=torch.tensor([1]),
        block_tables=torch.tensor([[3]]),
        options=AttentionOptions(0.25),
    )
    torch.testing.assert_close(output[0], value_cache[3, 0].repeat_interleave(2, dim=0))


@pytest.mark.parametrize("window", [None, 5])
def test_paged_attention_agrees_with_dense(window: int | None) -> None:
    query_len, seq_len, block_size = 6, 11, 4
    key_cache, value_cache = torch.randn(2, 5, block_size, 2, 8)
    table = [4, 0, 2]
    query = torch.randn(query_len, 6, 8)
    keys, values = (
        cache[table].flatten(0, 1)[:seq_len].repeat_interleave(3, dim=1).transpose(0, 1)
        for cache in (key_cache, value_cache)
    )
    distance = torch.arange(5, 11).unsqueeze(1) - torch.arange(seq_len)
    seen = (distance >= 0) & (distance < (window or seq_len))
    expected = F.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, attn_mask=seen, scale=0.3
    )
    output = paged_attention(
        query,
        key_cache,
        value_cache,
        query_start_loc=torch.tensor([0, query_len]),
        seq_lens=torch.tensor([seq_len]),
        block_tables=torch.tensor([table]),
        options=AttentionOptions(0.3, window=window),
    )
    torch.testing.assert_close(output, expected.transpose(0, 1))


def test_paged_attention_with_sinks_is_softmax_with_a_further_column() -> None:
    key_cache, value_cache = torch.randn(2, 1, 8, 1, 4)
    query, sinks = torch.randn(1, 2, 4), torch.tensor([0.5, -1.0])
    scores = torch.cat([query[0] @ key_cache[0, :5, 0].T * 0.5, sinks[:, None]], dim=1)
    output = paged_attention(
        query,
        key_cache,
        value_cache,
        query_start_loc=torch.tensor([0, 1]),
        seq_lens=torch.tensor([5]),
        block_tables=torch.tensor([[0]]),
        options=AttentionOptions(0.5, sinks=sinks),
    )
    expected = scores.softmax(dim=1)[:, :-1] @ value_cache[0, :5, 0]
    torch.testing.assert_close(output[0], expected)


def test_block_sparse_pattern() -> None:
    """Keys are all zero, so that the output is the mean of the seen tokens' values."""
    length, sparse = 24, BlockSparse(4, num_local_blocks=2, stride=3, head_step=1)
    values = torch.eye(length).view(1, length, 1, length)
    output = paged_attention(
        torch.zeros(length, 2, 1),
        torch.zeros(1, length, 1, 1),
        values,
        query_start_loc=torch.tensor([0, length]),
        seq_lens=torch.tensor([length]),
        block_tables=torch.tensor([[0]]),
        options=AttentionOptions(1.0, block_sparse=sparse),
    )
    # The last token, in block 5: blocks 4 and 5, and (k + 1) % 3 == 0 or (k + 2) % 3 == 0.
    for head, far in enumerate(([2], [1])):
        seen = output[-1, head].view(6, 4).sum(dim=1) > 0
        assert seen.nonzero().flatten().tolist() == [*far, 4, 5]


def test_log_n_scales_queries_beyond_the_trained_length() -> None:
    key_cache, value_cache = torch.randn(2, 1, 8, 1, 4)
    query = torch.randn(1, 1, 4)
    place = {
        "query_start_loc": torch.tensor([0, 1]),
        "seq_lens": torch.tensor([8]),
        "block_tables": torch.tensor([[0]]),
    }
    scaled = paged_attention(
        query, key_cache, value_cache, **place, options=AttentionOptions(0.5, log_n=2)
    )
    threefold = paged_attention(
        query, key_cache, value_cache, **place, options=AttentionOptions(1.5)
    )
    torch.testing.assert_close(scaled, threefold)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.0}, "scale must be positive, not 0.0"),
        ({"scale": 1.0, "cap": float("nan")}, "cap must be positive, not nan"),
        ({"scale": 1.0, "window": 0}, "window must be at least 1, not 0"),
        ({"scale": 1.0, "log_n": 1}, "log_n must be at least 2, not 1"),
    ],
)
def test_impossible_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionOptions(**options)


def test_impossible_entries_are_named() -> None:
    with pytest.raises(ValueError, match="must be 64 at most, not 65"):
        KVEntry(1, 64, 65, latent=True)
    with pytest.raises(ValueError, match="must be positive"):
        KVEntry(0, 64, 64)
    with pytest.raises(ValueError, match="must be positive"):
        BlockSparse(64, 0, 8)
    with pytest.raises(ValueError, match="must not be negative"):
        BlockSparse(64, 1, 8, head_step=-1)
