"""What attention launches, as the host chooses it."""

from __future__ import annotations

from typing import Any

import pytest

from taco_kernels.triton.attention_plan import MAX_SPLITS, AttentionPlan, plan_attention

LLAMA = {
    "num_heads": 32,
    "num_kv_heads": 8,
    "key_dim": 128,
    "value_dim": 128,
    "kv_bytes": 2,
    "query_bytes": 2,
    "num_sms": 132,
}


def plan(
    num_tokens: int, num_seqs: int, query_len: int, seq_len: int, **more: Any
) -> AttentionPlan:
    return plan_attention(
        **{
            **LLAMA,
            "num_tokens": num_tokens,
            "num_seqs": num_seqs,
            "max_query_len": query_len,
            "max_seq_len": seq_len,
            **more,
        }
    )


@pytest.mark.parametrize("num_seqs", [1, 4, 16, 32])
def test_decodes_fill_the_device(num_seqs: int) -> None:
    (part,) = plan(num_seqs, num_seqs, 1, 32768).passes
    programs = num_seqs * LLAMA["num_kv_heads"] * part.num_splits
    assert programs >= 2 * 132
    assert part.is_one_tile
    assert part.tokens_per_tile == 1


def test_large_batches_and_short_contexts_are_not_split() -> None:
    assert plan(256, 256, 1, 8192).passes[0].num_splits == 1
    short = plan(1, 1, 1, 64)
    assert short.passes[0].num_splits == 1
    assert short.workspace_size == 0


def test_a_window_bounds_what_is_split() -> None:
    assert plan(1, 1, 1, 131072, window=256).passes[0].num_splits <= 2
    assert plan(1, 1, 1, 131072).passes[0].num_splits > 2
    assert plan(1, 1, 1, 131072, num_kv_heads=1).passes[0].num_splits == MAX_SPLITS


@pytest.mark.parametrize(("query_len", "group", "block_m"), [(1, 4, 16), (5, 4, 32), (16, 4, 64)])
def test_drafts_to_verify_lie_in_one_tile(query_len: int, group: int, block_m: int) -> None:
    (part,) = plan(8 * query_len, 8, query_len, 4096, num_heads=8 * group).passes
    assert part.tiling.block_m == block_m
    assert query_len <= part.tokens_per_tile
    assert part.tokens_per_tile * group <= block_m


def test_a_mixed_batch_has_a_pass_for_long_and_one_for_short_queries() -> None:
    few, many = plan(600, 10, 512, 4096).passes  # the decodes are launched first
    assert few.max_query_len + 1 == many.min_query_len
    assert few.min_query_len == 1
    assert many.max_query_len == 512
    assert few.num_splits > 1


def test_a_lone_prefill_is_one_pass_and_its_rows_are_split_where_they_are_few() -> None:
    (long,) = plan(8192, 1, 8192, 8192).passes
    assert (long.min_query_len, long.num_splits) == (1, 1)
    (chunk,) = plan(64, 1, 64, 32768).passes
    assert chunk.num_splits > 1


@pytest.mark.parametrize("num_heads", [8, 16, 56, 1024])
def test_tiles_have_room_for_all_tokens(num_heads: int) -> None:
    for part in plan(1000, 7, 900, 1000, num_heads=num_heads).passes:
        group = num_heads // 8
        assert part.tokens_per_tile * group <= part.tiling.block_m
        if part.is_one_tile:
            assert part.tokens_per_tile >= part.max_query_len
        else:
            assert (part.num_tiles - 7) * part.tokens_per_tile + part.tokens_per_tile > 1000


def test_the_workspace_has_room_for_what_is_split_alone() -> None:
    """And not for the long prompt beside it."""
    made = plan(8192, 10, 8000, 32768)
    few, many = made.passes
    assert many.num_splits == 1
    assert made.workspace_size == 10 * few.tokens_per_tile * few.num_splits * 32 * (128 + 1)


def test_heads_that_share_a_latent_are_split_into_tiles() -> None:
    shape = {"num_heads": 128, "num_kv_heads": 1, "key_dim": 576, "value_dim": 512, "latent": True}
    decode = plan(4, 4, 1, 8192, **shape)
    assert decode.heads_per_tile == 16
    assert decode.passes[0].tiling.block_m == 16
    assert decode.workspace_size % (128 * 513) == 0
    prefill = plan(512, 1, 512, 512, **shape).passes[0]
    assert prefill.tokens_per_tile * 16 == prefill.tiling.block_m == 64
    assert plan(4, 4, 1, 8192, **{**shape, "num_heads": 40}).heads_per_tile == 10
