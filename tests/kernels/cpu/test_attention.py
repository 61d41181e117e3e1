"""Paged attention of the CPU kernels against torch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_attention import (
    FORMATS,
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
from taco_kernels.kv_entry import EntryScales, KVEntry
from taco_kernels.kv_format import FLOAT8_DTYPES, KVFormat, quantize, quantize_rows
from taco_kernels.library import CpuKernels


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
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
    kv_format: KVFormat,
    model: Model,
    contexts: tuple[int, ...],
    query_lens: tuple[int, ...],
) -> None:
    model = replace(model, format=kv_format)
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
        format=st.sampled_from(list(FORMATS.values())),
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


@pytest.mark.parametrize("kv_format", FORMATS.values(), ids=FORMATS)
def test_cache_is_read_back(cpu_kernels: CpuKernels, kv_format: KVFormat) -> None:
    model = Model(kv_format, num_kv_heads=3, head_dim=20, block_size=32)
    sequence = Sequence(model, 75, 0)
    engine = Engine(cpu_kernels, [sequence])
    in_chunks(engine, 0, [0, 3, 20, 75])

    for index, (read, written) in enumerate(
        zip(
            engine.cache.read(LAYER, engine.tables[0], 75),
            (sequence.keys, sequence.values),
            strict=True,
        )
    ):
        dtype, fixed = kv_format.dtype, kv_format.of_entry(LAYER)
        if fixed is not None:
            scale = (fixed.key, fixed.value)[index]
            expected = quantize(written, dtype, scale).float() * scale
        elif kv_format.has_token_scales:
            stored, scales = quantize_rows(written, dtype)
            expected = stored.float() * scales.unsqueeze(-1)
        else:
            expected = written.to(dtype).float()
        assert torch.equal(read, expected)


@pytest.mark.parametrize("dtype", FLOAT8_DTYPES)
def test_every_float8_number(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    """Bytes are those of torch, limited to the range, and attention reads each of them.

    A value of NaN is not stored: its token gets zeros (test_attention_bits.py).
    """
    codes = torch.arange(128, dtype=torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()]
    middles = (finite[1:] + finite[:-1]) / 2
    around = torch.cat([middles.nextafter(codes.new_tensor(x)) for x in (0.0, 1e9)])
    extreme = torch.tensor([1e-30, finite[1] / 2, 1.01 * finite[-1], 1e30, torch.inf])
    sizes = torch.cat([finite, middles, around, extreme])
    numbers = torch.cat([sizes, -sizes])
    limit = torch.finfo(dtype).max
    expected = numbers.clamp(-limit, limit).to(dtype)
    cache = PagedKV.allocate(
        1,
        KVFormat(dtype, (EntryScales(1.0, 1.0),)),
        16,
        [KVEntry(1, 16, len(numbers))],
    )
    one = torch.tensor([1], dtype=torch.int32)
    batch = PagedBatch(torch.tensor([0, 1], dtype=torch.int32), one, torch.zeros(1, 1).int())
    write_kv(cpu_kernels, cache, batch, 0, torch.zeros(1, 1, 16), numbers.view(1, 1, -1))

    def attend() -> Tensor:
        plain = AttentionOptions(1.0)
        query = torch.zeros(1, 1, 16)
        return paged_attention(cpu_kernels, query, cache, batch, 0, plain).flatten()

    read = cache.read(0, batch.block_tables[0], 1)[1].flatten()
    for got in (read, attend()):
        torch.testing.assert_close(got, expected.float(), rtol=0, atol=0, equal_nan=True)
    # Infinity is read, and never written.
    greatest = codes[finite.numel() - 1].to(dtype).view(torch.uint8)
    cache.memory[cache.memory == greatest] += 1
    overflow = torch.tensor(int(greatest) + 1, dtype=torch.uint8).view(dtype).float()
    past_greatest = torch.where(expected.float() == limit, overflow, expected.float())
    torch.testing.assert_close(attend(), past_greatest, rtol=0, atol=0, equal_nan=True)


def test_int8_costs_little_accuracy(cpu_kernels: CpuKernels) -> None:
    outs = []
    for dtype in (torch.int8, torch.float32):
        model = Model(KVFormat(dtype), group=2, head_dim=64)
        outs.append(Engine(cpu_kernels, [Sequence(model, 200, 0)]).step({0: 200})[0])
    error = (outs[0] - outs[1]).pow(2).mean().sqrt()
    assert error < 0.02 * outs[1].pow(2).mean().sqrt()


def test_a_zero_row_is_kept_by_int8(cpu_kernels: CpuKernels) -> None:
    sequence = Sequence(Model(KVFormat(torch.int8)), 3, 0)
    sequence.keys[1], sequence.values[1] = 0, 0
    engine = Engine(cpu_kernels, [sequence])
    out = engine.step({0: 3})[0]
    assert_near_reference(engine, out)
    assert not engine.cache.read(LAYER, engine.tables[0], 3)[1][1].any()


@pytest.mark.parametrize("sink", [-200.0, 0.0, 50.0, 89.0, 1e4, torch.inf])
def test_a_sink_far_from_the_scores(cpu_kernels: CpuKernels, sink: float) -> None:
    """With equal scores, five values and a sink share the weight."""
    cache = PagedKV.allocate(1, KVFormat(torch.float32), 16, [KVEntry(1, 16, 16)])
    starts, length = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    batch = PagedBatch(starts, length, torch.zeros(1, 1).int())
    write_kv(cpu_kernels, cache, batch, 0, torch.zeros(5, 1, 16), torch.ones(5, 1, 16))
    batch = PagedBatch(torch.tensor([0, 1], dtype=torch.int32), length, batch.block_tables)
    options = AttentionOptions(1.0, sinks=torch.tensor([sink]))
    out = paged_attention(cpu_kernels, torch.zeros(1, 1, 16), cache, batch, 0, options)
    expected = 5 / (5 + torch.tensor(sink, dtype=torch.float64).exp())
    torch.testing.assert_close(out, expected.float().expand(1, 1, 16), rtol=1e-5, atol=1e-36)


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
    engine = Engine(kernels, [Sequence(Model(KVFormat(torch.float32)), 4, 0)])
    engine.step({0: 4})
    cache, batch, queries = engine.cache, engine.batch, engine.queries
    plain = AttentionOptions(1.0)
    with pytest.raises(ValueError, match="block_size must be a multiple of 16, not 8"):
        PagedKV.allocate(1, KVFormat(torch.float32), 8, [KVEntry(1, 16, 16)])
    with pytest.raises(ValueError, match=r"float8_e5m2, not torch\.float16"):
        PagedKV.allocate(1, KVFormat(torch.float16), 16, [KVEntry(1, 16, 16)])
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
