"""Paged attention of the CPU kernels against torch."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cpu_attention import (
    DTYPES,
    LATENT,
    LAYER,
    SPARSE,
    Engine,
    Model,
    Sequence,
    assert_near_reference,
    in_chunks,
)
from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.cpu.attention import paged_attention
from taco_kernels.cpu.kv_cache import PagedBatch, PagedKV, write_kv
from taco_kernels.kv_entry import KVEntry
from taco_kernels.library import CpuKernels


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("model", "contexts", "query_lens"),
    [
        (Model(group=7, head_dim=64), (300, 17, 0, 599), (1, 5, 1, 1)),
        (Model(group=4, head_dim=128, block_size=32), (0, 500), (40, 3)),
        (Model(group=3, head_dim=80, window=40), (260, 0), (40, 70)),
        (Model(head_dim=20, block_size=32, cap=3.0, has_alibi=True), (260, 0), (40, 70)),
        (Model(num_kv_heads=1, group=71, head_dim=16), (10,), (3,)),
        (Model(group=2, window=1), (299, 0), (1, 20)),
        (Model(group=8, head_dim=48, window=300), (690, 0), (2, 1)),
        (Model(group=4, head_dim=64, has_sinks=True, window=128), (600, 3), (5, 1)),
        (Model(group=2, head_dim=32, log_n=200, cap=8.0), (400, 0), (3, 40)),
        (Model(group=4, head_dim=32, sparse=SPARSE), (700, 0), (9, 60)),
        (Model(group=3, sparse=BlockSparse(16, 1, 5, 1, 2), has_alibi=True), (290,), (1,)),
        (Model(head_dim=24, value_dim=16, group=5), (300, 0), (1, 20)),
        (Model(head_dim=20, value_dim=70, group=2), (20, 0), (30, 20)),
        (LATENT, (530, 0, 17), (1, 3, 2)),
        (Model(num_kv_heads=1, group=3, head_dim=40, value_dim=24, is_latent=True), (290,), (9,)),
        # Query blocks of 252 rows, the last one of 28; and a context of several parts beside them.
        (Model(group=7, head_dim=64), (100, 800), (184, 1)),
        # Rows of a block that see none of a span which others see.
        (Model(group=8, window=20), (0,), (300,)),
        (Model(group=16, sparse=SPARSE, cap=4.0), (200,), (220,)),
    ],
)
def test_attention(
    cpu_kernels: CpuKernels,
    dtype: torch.dtype,
    model: Model,
    contexts: tuple[int, ...],
    query_lens: tuple[int, ...],
) -> None:
    model = Model(**{**vars(model), "dtype": dtype})
    lengths = [sum(pair) for pair in zip(contexts, query_lens, strict=True)]
    engine = Engine(cpu_kernels, [Sequence(model, n, seed) for seed, n in enumerate(lengths)])
    with_context = {i: n for i, n in enumerate(contexts) if n}
    if with_context:
        engine.step(with_context)

    out = engine.step(dict(enumerate(query_lens)))

    assert_near_reference(engine, torch.cat(list(out.values())))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    isa=st.sampled_from((*NATIVE, *EMULATED)),
    model=st.builds(
        Model,
        dtype=st.sampled_from(DTYPES),
        num_kv_heads=st.integers(1, 3),
        group=st.integers(1, 8),
        head_dim=st.integers(1, 128),
        block_size=st.sampled_from((16, 32, 48)),
        window=st.none() | st.integers(1, 600),
        cap=st.none() | st.floats(0.5, 50),
        has_alibi=st.booleans(),
        has_sinks=st.booleans(),
        log_n=st.none() | st.integers(2, 500),
        sparse=st.none()
        | st.builds(
            BlockSparse,
            block_size=st.sampled_from((16, 32, 48, 64)),
            num_local_blocks=st.integers(1, 4),
            stride=st.integers(1, 6),
            head_step=st.integers(0, 2),
            head_offset=st.integers(0, 3),
        ),
        value_dim=st.none() | st.integers(1, 128),
        is_latent=st.booleans(),
    ).filter(lambda model: not model.is_latent or (model.value_dim or 0) <= model.head_dim),
    shape=st.lists(
        st.tuples(st.integers(0, 660), st.integers(1, 3) | st.integers(1, 40) | st.just(130)),
        min_size=1,
        max_size=3,
    ),
)
def test_any_shape(isa: str, model: Model, shape: list[tuple[int, int]]) -> None:
    sequences = [Sequence(model, context + n, seed) for seed, (context, n) in enumerate(shape)]
    engine = Engine(kernels_of(isa, 2), sequences)
    if contexts := {i: context for i, (context, _) in enumerate(shape) if context}:
        engine.step(contexts)

    out = engine.step({i: n for i, (_, n) in enumerate(shape)})

    assert_near_reference(engine, torch.cat(list(out.values())))


@pytest.mark.parametrize("dtype", DTYPES)
def test_cache_is_read_back(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    model = Model(dtype, num_kv_heads=3, head_dim=20, block_size=32)
    sequence = Sequence(model, 75, 0)
    engine = Engine(cpu_kernels, [sequence])
    in_chunks(engine, 0, [0, 3, 20, 75])

    for read, written in zip(
        engine.cache.read(LAYER, engine.tables[0], 75),
        (sequence.keys, sequence.values),
        strict=True,
    ):
        if dtype == torch.int8:
            half_a_step = written.abs().amax(-1, keepdim=True) / 127 / 2
            assert ((read - written).abs() <= half_a_step * 1.001).all()
        else:
            assert torch.equal(read, written.to(dtype).float())


def test_int8_costs_little_accuracy(cpu_kernels: CpuKernels) -> None:
    outs = []
    for dtype in (torch.int8, torch.float32):
        model = Model(dtype, group=2, head_dim=64)
        outs.append(Engine(cpu_kernels, [Sequence(model, 200, 0)]).step({0: 200})[0])
    error = (outs[0] - outs[1]).pow(2).mean().sqrt()
    assert error < 0.02 * outs[1].pow(2).mean().sqrt()


def test_a_zero_row_is_kept_by_int8(cpu_kernels: CpuKernels) -> None:
    sequence = Sequence(Model(torch.int8), 3, 0)
    sequence.keys[1], sequence.values[1] = 0, 0
    engine = Engine(cpu_kernels, [sequence])
    out = engine.step({0: 3})[0]
    assert_near_reference(engine, out)
    assert not engine.cache.read(LAYER, engine.tables[0], 3)[1][1].any()


def test_nothing_to_do(cpu_kernels: CpuKernels) -> None:
    engine = Engine(cpu_kernels, [Sequence(Model(), 1, 0)])
    engine.batch = PagedBatch(
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int32),
        torch.zeros(0, 1, dtype=torch.int32),
    )
    assert engine.attend(torch.empty(0, 2, 16)).shape == (0, 2, 16)


def test_bad_input() -> None:
    kernels = kernels_of("avx2", 1)
    engine = Engine(kernels, [Sequence(Model(torch.float32), 4, 0)])
    engine.step({0: 4})
    cache, batch, queries = engine.cache, engine.batch, engine.queries
    plain = AttentionOptions(1.0)
    with pytest.raises(ValueError, match="block_size must be a multiple of 16, not 8"):
        PagedKV.allocate(1, torch.float32, 8, [KVEntry(1, 16, 16)])
    with pytest.raises(ValueError, match=r"float32, bfloat16 or int8, not torch\.float16"):
        PagedKV.allocate(1, torch.float16, 16, [KVEntry(1, 16, 16)])
    with pytest.raises(ValueError, match="3 heads are no multiple of 2 KV heads"):
        paged_attention(kernels, torch.zeros(4, 3, 16), cache, batch, 0, plain)
    with pytest.raises(ValueError, match=r"query must be torch\.float32"):
        paged_attention(kernels, queries.double(), cache, batch, 0, plain)
    with pytest.raises(ValueError, match="entry must be 0 to 1, not 2"):
        paged_attention(kernels, queries, cache, batch, 2, plain)
    with pytest.raises(ValueError, match="contiguous"):
        write_kv(kernels, cache, batch, 0, queries.mT.contiguous().mT, queries)
    with pytest.raises(ValueError, match="1 seq_lens go with 2 query_start_loc"):
        PagedBatch(batch.query_start_loc[:1], batch.seq_lens, batch.block_tables)
    sparse = AttentionOptions(1.0, block_sparse=BlockSparse(24, 1, 1))
    with pytest.raises(ValueError, match=r"blocks of a multiple of 16 tokens .*, not 24"):
        paged_attention(kernels, queries, cache, batch, 0, sparse)
    sinks = AttentionOptions(1.0, sinks=torch.zeros(3))
    with pytest.raises(ValueError, match=r"sinks must be contiguous float32 \[2\]"):
        paged_attention(kernels, queries, cache, batch, 0, sinks)
    with pytest.raises(ValueError, match="a latent entry, and no other, is written without values"):
        write_kv(kernels, cache, batch, 0, queries, None)
