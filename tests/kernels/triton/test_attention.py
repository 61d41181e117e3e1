"""Paged attention on the GPU against the reference: shapes, masks and mixed batches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.attention_step import DTYPES, E4M3, E5M2, FP8, Case, Step
from support.triton_interpreter import DEVICE
from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.kv_format import KVFormat
from taco_kernels.triton.attention import AttentionBatch, TreeRows, paged_attention
from taco_kernels.triton.attention_plan import Tiling

# A decode, nothing, a chunk with context, and a prompt's first tokens.
MIXED = ((37, 1), (9, 0), (45, 20), (0, 3))
DECODES = ((37, 1), (0, 1), (15, 1), (100, 1))
HEADS = ((4, 4), (8, 2), (14, 2), (32, 8))
HEAD_DIMS = (64, 80, 96, 128, 256)

# A pattern that skips most blocks of a short context.
SPARSE = BlockSparse(block_size=8, num_local_blocks=2, stride=3)
# (key_dim, value_dim) of latent entries
LATENTS = ((80, 64), (48, 40), (64, 64))

# Small, so that few tokens make many tiles.
MANY_ROWS = Tiling(16, 16, 4, 2, programs_per_sm=1, masks_all=False)
FEW_ROWS = Tiling(16, 32, 4, 2, programs_per_sm=1, masks_all=True)

EIGHT_BIT = {
    "e4m3": FP8,
    "e4m3 with scales of tokens": KVFormat(E4M3),
    "e5m2 with scales of tokens": KVFormat(E5M2),
    "int8": KVFormat(torch.int8),
}


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("heads", HEADS)
def test_heads(heads: tuple[int, int], head_dim: int) -> None:
    """A decode and a chunk in the tiles that are chosen for them, of all dtypes and block sizes."""
    index = len(HEADS) * HEAD_DIMS.index(head_dim) + HEADS.index(heads)
    dtype = DTYPES[index % len(DTYPES)]
    Step(Case(((37, 1), (21, 20)), heads, head_dim, (8, 16, 32)[index % 3], dtype)).check()


@pytest.mark.parametrize(
    "options",
    [
        {"window": 1},
        {"window": 11},
        {"window": 50},
        {"window": 1000},
        {"cap": 2.0},
        {"has_alibi": True},
        {"window": 20, "cap": 5.0, "has_alibi": True},
        {"has_sinks": True},
        {"log_n": 30},
        {"log_n": 8, "cap": 3.0, "has_sinks": True, "window": 40},
        {"sparse": SPARSE},
        {"sparse": replace(SPARSE, head_step=1, head_offset=2), "has_alibi": True},
        {"value_dim": 32},
        {"value_dim": 96, "has_sinks": True},
    ],
    ids=str,
)
def test_score_options(options: dict) -> None:
    """By one masked loop and by three, over tiles of which many lie before the window."""
    step = Step(Case(MIXED, (2, 1), 64, dtype=torch.float16, **options))
    step.check(many_rows=MANY_ROWS, few_rows=replace(FEW_ROWS, masks_all=False))


@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_key_of_nan_reaches_the_rows_that_see_it(num_splits: int) -> None:
    """And no others of its tile: `write_kv` stores values that are not finite with such keys.

    The decode's own key is the only one of its split.
    """
    step = Step(Case(((30, 40), (12, 3), (32, 1)), (4, 2), 64, dtype=torch.float16))
    plan = step.plan(num_splits=num_splits, many_rows=MANY_ROWS, few_rows=FEW_ROWS)
    whole = step.attend(plan)
    size = step.case.block_size
    for sequence, position in ((0, 55), (2, 32)):
        block = step.clean_tables[sequence, position // size]
        step.key_cache[block, position % size] = torch.nan
        step.value_cache[block, position % size] = 0
    out = step.attend(plan)
    rows_that_see = [*range(25, 40), 43]
    others = [row for row in range(44) if row not in rows_that_see]
    assert torch.equal(out[others], whole[others])
    assert out[rows_that_see].isnan().all()


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("dims", LATENTS)
@pytest.mark.parametrize("heads", [(16, 1), (48, 1), (6, 1)])
def test_latent(heads: tuple[int, int], dims: tuple[int, int], num_splits: int) -> None:
    """Values are read from the keys; the heads of a sequence take one to three tiles."""
    lens = MIXED if dims == LATENTS[0] else DECODES
    case = Case(lens, heads, dims[0], value_dim=dims[1], is_latent=True, dtype=torch.float16)
    step = Step(case)
    assert step.plan().heads_per_tile == min(16, heads[0])
    step.check(num_splits=num_splits, many_rows=MANY_ROWS)


@pytest.mark.parametrize("kv_format", [FP8, KVFormat(E4M3), KVFormat(torch.int8)], ids=str)
def test_latent_8_bit_cache(kv_format: KVFormat) -> None:
    step = Step(
        Case(
            MIXED,
            (8, 1),
            80,
            value_dim=64,
            is_latent=True,
            kv_format=kv_format,
            dtype=torch.float16,
        )
    )
    step.check(many_rows=MANY_ROWS)


@pytest.mark.parametrize("options", [{"has_sinks": True}, {"sparse": SPARSE}, {"log_n": 20}])
def test_split_options(options: dict) -> None:
    step = Step(Case(((45, 20), (90, 1)), (4, 1), 64, **options))
    step.check(num_splits=3, many_rows=MANY_ROWS, few_rows=FEW_ROWS)


def test_many_rows_by_one_masked_loop() -> None:
    Step(Case(MIXED, (2, 1), 64, window=30)).check(many_rows=replace(MANY_ROWS, masks_all=True))


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("num_splits", [2, 9])
@pytest.mark.parametrize("lens", [((45, 20), (0, 3)), DECODES])
def test_splits(lens: tuple[tuple[int, int], ...], num_splits: int, window: int | None) -> None:
    """More splits than some sequences have tiles, so that shares are empty."""
    step = Step(Case(lens, (4, 1), 80, window=window))
    step.check(num_splits=num_splits, many_rows=MANY_ROWS, few_rows=FEW_ROWS)


def test_fresh_prefill_of_several_tiles() -> None:
    Step(Case(((0, 90),), (4, 1), 64)).check(many_rows=replace(MANY_ROWS, block_m=64))


def test_more_query_heads_than_rows_of_a_tile() -> None:
    Step(Case(((5, 1), (0, 4)), (71, 1), 64)).check()


@pytest.mark.parametrize("kv_format", EIGHT_BIT.values(), ids=EIGHT_BIT)
@pytest.mark.parametrize("lens", [((45, 20), (0, 3)), DECODES])
def test_8_bit_cache(lens: tuple[tuple[int, int], ...], kv_format: KVFormat) -> None:
    step = Step(Case(lens, (4, 2), 64, dtype=torch.float16, kv_format=kv_format))
    step.check()
    step.check(num_splits=3)


@pytest.mark.parametrize(
    "options",
    [{"window": 30}, {"cap": 5.0, "has_alibi": True}, {"has_sinks": True, "log_n": 20}],
    ids=str,
)
def test_score_options_with_scales_of_tokens(options: dict) -> None:
    case = Case(MIXED, (2, 1), 64, dtype=torch.float16, kv_format=KVFormat(E4M3), **options)
    Step(case).check(many_rows=MANY_ROWS, few_rows=replace(FEW_ROWS, masks_all=False))


def _random_tree(num_tokens: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(-1, token) for token in range(num_tokens))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 6},
        {"has_alibi": True, "cap": 3.0},
        {"sparse": SPARSE, "log_n": 15, "has_sinks": True},
    ],
    ids=str,
)
def test_trees(options: dict) -> None:
    """Trees of drafts beside decodes and a chunk that no mask is wide enough for."""
    lens = ((37, 9), (20, 1), (3, 40), (5, 70))
    parents = (_random_tree(9, 1), None, _random_tree(40, 2), None)
    many_rows = replace(MANY_ROWS, block_m=32)
    Step(Case(lens, (2, 1), 64, parents=parents, **options)).check(many_rows=many_rows)
    few = Step(Case(lens[:2], (4, 2), 64, parents=parents[:2], **options))
    few.check()
    few.check(num_splits=2, few_rows=FEW_ROWS)


@pytest.mark.parametrize("heads", [(1, 1), (2, 1)])
def test_a_tree_of_64_tokens(heads: tuple[int, int]) -> None:
    """The last bit of a mask is the sign."""
    two_branches = (-1, *range(31), *range(30, 62))
    step = Step(Case(((12, 64),), heads, 64, parents=(two_branches,)))
    step.check(many_rows=replace(MANY_ROWS, block_m=64))


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("lens", [((45, 20), (0, 3)), DECODES])
def test_rows_of_a_graph_that_no_sequence_uses(
    lens: tuple[tuple[int, int], ...], num_splits: int
) -> None:
    """A plan larger than the batch; rows of no sequence stay unchanged."""
    step = Step(Case(lens, (4, 1), spare_seqs=3, spare_tokens=5))
    tokens, seqs = len(step.query) + 4, step.batch.num_seqs + 2
    step.check(num_splits=num_splits, max_seq_len=1000, num_tokens=tokens, num_seqs=seqs)


def test_offsets_beyond_32_bits() -> None:
    """Block 2 begins 2**31 numbers after the cache's start."""
    step = Step(Case(((20, 13),), (2, 1), 64, dtype=torch.float16, kv_format=FP8))
    expected = step.attend()
    num_blocks, block_stride = len(step.key_cache), 2**30 + 64
    assert num_blocks == 4
    memory = torch.empty(num_blocks * block_stride, dtype=step.key_cache.dtype, device=DEVICE)
    kept = []
    for offset, cache in ((0, step.key_cache), (2**20, step.value_cache)):
        shape = cache.shape
        strides = (block_stride, shape[2] * shape[3], shape[3], 1)
        far = memory.as_strided(shape, strides, offset)
        far.copy_(cache)
        kept.append(far)
    step.key_cache, step.value_cache = kept
    assert torch.equal(step.attend(), expected)


def test_nothing_to_do() -> None:
    step = Step(Case(((5, 0), (0, 0))))
    assert step.attend().shape == (0, 4, 64)


@given(
    lens=st.lists(
        st.tuples(st.integers(0, 70), st.just(1) | st.integers(0, 12) | st.integers(0, 40)),
        min_size=1,
        max_size=3,
    ),
    heads=st.sampled_from([(1, 1), (4, 2), (7, 1)]),
    head_dim=st.sampled_from([16, 40, 64]),
    block_size=st.sampled_from([8, 16, 32]),
    window=st.none() | st.integers(1, 60),
    options=st.fixed_dictionaries(
        {},
        optional={
            "cap": st.floats(0.5, 50),
            "has_alibi": st.booleans(),
            "has_sinks": st.booleans(),
            "log_n": st.integers(2, 80),
            "sparse": st.builds(
                BlockSparse,
                block_size=st.integers(1, 40),
                num_local_blocks=st.integers(1, 3),
                stride=st.integers(1, 4),
                head_step=st.integers(0, 2),
                head_offset=st.integers(0, 3),
            ),
            "value_dim": st.sampled_from([8, 16, 33]),
        },
    ),
    is_latent=st.booleans(),
    has_tree=st.booleans(),
    block_m=st.sampled_from([32, 64]),
    block_n=st.sampled_from([32, 64]),
    masks_all=st.booleans(),
    num_splits=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_any_batch(
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    options: dict,
    is_latent: bool,
    has_tree: bool,
    block_m: int,
    block_n: int,
    masks_all: bool,
    num_splits: int,
    seed: int,
) -> None:
    parents = tuple(_random_tree(query_len, seed) for _, query_len in lens) if has_tree else None
    tiling = Tiling(block_m, block_n, 4, 2, programs_per_sm=1, masks_all=masks_all)
    case = Case(
        tuple(lens),
        (heads[0], 1) if is_latent else heads,
        head_dim,
        block_size,
        window=window,
        parents=parents,
        is_latent=is_latent and options.get("value_dim", 0) <= head_dim,
        seed=seed,
        **options,
    )
    Step(case).check(many_rows=tiling, few_rows=tiling, num_splits=num_splits)


def _attend(batch: AttentionBatch, **changes: object) -> None:
    inputs: dict = {
        "query": torch.zeros(3, 4, 64, device=DEVICE),
        "key_cache": torch.zeros(2, 16, 2, 64, device=DEVICE),
        "value_cache": torch.zeros(2, 16, 2, 64, device=DEVICE),
        "options": AttentionOptions(1.0),
    }
    paged_attention(batch=batch, **{**inputs, **changes})


def test_bad_input() -> None:
    step = Step(Case(((5, 3),)))
    batch = step.batch
    _attend(batch)
    cache = torch.zeros(2, 16, 2, 64, device=DEVICE)
    with pytest.raises(ValueError, match=r"query must be .* not torch\.float64"):
        _attend(batch, query=torch.zeros(3, 4, 64, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"key_cache must be .* 64\], not \[2, 16, 2, 32\]"):
        _attend(batch, key_cache=cache[..., :32])
    with pytest.raises(ValueError, match="the same blocks and heads"):
        _attend(batch, value_cache=cache[:1])
    with pytest.raises(ValueError, match=r"the cache must be torch\.float32 or"):
        _attend(batch, key_cache=cache.half(), value_cache=cache.half())
    with pytest.raises(ValueError, match="block_size must be one of"):
        _attend(batch, key_cache=cache[:, :12], value_cache=cache[:, :12])
    with pytest.raises(ValueError, match="3 heads do not share 2 KV heads"):
        _attend(batch, query=torch.zeros(3, 3, 64, device=DEVICE))
    with pytest.raises(ValueError, match="adjacent"):
        _attend(batch, query=torch.zeros(3, 64, 4, device=DEVICE).mT)
    with pytest.raises(ValueError, match="out must be"):
        _attend(batch, out=torch.zeros(3, 4, 32, device=DEVICE))
    slopes = torch.zeros(2, device=DEVICE)
    with pytest.raises(ValueError, match=r"alibi must be contiguous float32 \[4\]"):
        _attend(batch, options=AttentionOptions(1.0, alibi=slopes))
    with pytest.raises(ValueError, match=r"seq_lens must be contiguous torch\.int32 \[1\]"):
        _attend(replace(batch, seq_lens=batch.seq_lens.long()))
    with pytest.raises(ValueError, match=r"block_tables must be torch\.int32 \[1, max_blocks\]"):
        _attend(replace(batch, block_tables=batch.block_tables[0]))
    tree = TreeRows(torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"masks must be contiguous torch\.int64 \[3\]"):
        _attend(replace(batch, tree=tree))
    with pytest.raises(ValueError, match="do not fit a plan for 2 of 1"):
        _attend(batch, plan=step.plan(num_tokens=2))
    plan = step.plan(num_splits=2)
    with pytest.raises(ValueError, match=r"workspace must be float32 \[2080\]"):
        _attend(batch, plan=plan, workspace=torch.zeros(2079, device=DEVICE))
