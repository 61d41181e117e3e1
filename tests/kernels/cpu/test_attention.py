"""Paged attention of the CPU kernels: against torch, and bit-identical in any batch."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.cpu.attention import paged_attention
from taco_kernels.cpu.kv_cache import PagedBatch, PagedKV, write_kv
from taco_kernels.kv_entry import KVEntry
from taco_kernels.library import CpuKernels
from taco_kernels.reference.attention import paged_attention as reference

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
LAYER = 1  # of two


@dataclass(frozen=True)
class Model:
    """Parameters that all sequences share."""

    dtype: torch.dtype = torch.bfloat16
    num_kv_heads: int = 2
    group: int = 1
    head_dim: int = 16
    block_size: int = 16
    window: int | None = None
    cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False
    log_n: int | None = None
    sparse: BlockSparse | None = None
    value_dim: int | None = None
    is_latent: bool = False

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group

    @property
    def entry(self) -> KVEntry:
        value_dim = self.value_dim or self.head_dim
        return KVEntry(self.num_kv_heads, self.head_dim, value_dim, self.is_latent)

    def options(self) -> AttentionOptions:
        slopes = 0.5 ** torch.arange(1.0, self.num_heads + 1)
        return AttentionOptions(
            self.head_dim**-0.5,
            window=self.window,
            cap=self.cap,
            alibi=slopes if self.has_alibi else None,
            sinks=2 - 8 * slopes if self.has_sinks else None,
            log_n=self.log_n,
            block_sparse=self.sparse,
        )


SPARSE = BlockSparse(block_size=64, num_local_blocks=2, stride=3, head_step=1)
# The shape of DeepSeek-V3, smaller.
LATENT = Model(num_kv_heads=1, group=16, head_dim=96, value_dim=64, is_latent=True)


def numbers(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Sequence:
    """Queries, keys and values of a sequence's tokens, drawn from its seed."""

    model: Model
    length: int
    seed: int
    queries: Tensor = field(init=False)
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        kv_shape = (self.length, self.model.num_kv_heads)
        query_shape = (self.length, self.model.num_heads, self.model.head_dim)
        self.queries = 2 * numbers(query_shape, 3 * self.seed)
        self.keys = numbers((*kv_shape, self.model.head_dim), 3 * self.seed + 1)
        value_dim = self.model.entry.value_dim
        self.values = numbers((*kv_shape, value_dim), 3 * self.seed + 2)
        if self.model.is_latent:
            self.values = self.keys[..., :value_dim]


class Engine:
    """A cache initialized with NaN, and the sequences written to it."""

    def __init__(self, kernels: CpuKernels, sequences: list[Sequence], seed: int = 0) -> None:
        self.kernels, self.sequences, self.model = kernels, sequences, sequences[0].model
        model = self.model
        needed = [-(-sequence.length // model.block_size) for sequence in sequences]
        self.cache = PagedKV.allocate(
            sum(needed) + 1,
            model.dtype,
            model.block_size,
            [model.entry] * (LAYER + 1),
        )
        self.cache.memory.fill_(0xFF)
        order = torch.randperm(sum(needed) + 1, generator=torch.Generator().manual_seed(seed))
        self.tables = torch.full((len(sequences), max(needed)), -1, dtype=torch.int32)
        for index, blocks in enumerate(order.int()[: sum(needed)].split(needed)):
            self.tables[index, : len(blocks)] = blocks
        self.seq_lens = [0] * len(sequences)

    def step(self, counts: dict[int, int]) -> dict[int, Tensor]:
        """The next `counts[i]` tokens of sequence i, all in one batch; their outputs."""
        spans = {i: slice(self.seq_lens[i], self.seq_lens[i] + n) for i, n in counts.items()}
        for index, span in spans.items():
            self.seq_lens[index] = span.stop
        parts = [(self.sequences[index], span) for index, span in spans.items()]
        self.batch = PagedBatch(
            torch.tensor([0, *counts.values()]).cumsum(0).int(),
            torch.tensor([span.stop for span in spans.values()]).int(),
            self.tables[list(counts)].contiguous(),
        )
        keys = torch.cat([sequence.keys[span] for sequence, span in parts])
        values = None
        if not self.model.is_latent:
            values = torch.cat([sequence.values[span] for sequence, span in parts])
        write_kv(self.kernels, self.cache, self.batch, LAYER, keys, values)
        queries = torch.cat([sequence.queries[span] for sequence, span in parts])
        out = self.attend(queries)
        return dict(zip(counts, out.split(list(counts.values())), strict=True))

    def attend(self, queries: Tensor) -> Tensor:
        """Attention of the last step's tokens."""
        self.queries = queries
        return paged_attention(
            self.kernels, queries, self.cache, self.batch, LAYER, self.model.options()
        )

    def expected(self, *, of_sizes: bool = False) -> Tensor:
        """The last step by the reference, from what the cache holds; or of the values' sizes."""
        model = self.model
        shape = (len(self.cache.memory), model.block_size, model.num_kv_heads)
        keys = torch.zeros(*shape, model.head_dim)
        values = torch.zeros(*shape, model.entry.value_dim)
        for table, seq_len in zip(self.batch.block_tables, self.batch.seq_lens, strict=True):
            positions = torch.arange(int(seq_len))
            at = (table[positions // model.block_size].long(), positions % model.block_size)
            keys[at], values[at] = self.cache.read(LAYER, table, int(seq_len))
        queries = self.queries
        if self.uses_bf16:
            queries = queries.bfloat16().float()
        return reference(
            queries,
            keys,
            values.abs() if of_sizes else values,
            self.batch.query_start_loc,
            self.batch.seq_lens,
            self.batch.block_tables,
            model.options(),
        )

    @property
    def uses_bf16(self) -> bool:
        """Whether queries and weights are rounded to bf16."""
        return self.model.dtype != torch.float32 and self.kernels.bf16_operand_bytes == 2


def assert_near_reference(engine: Engine, out: Tensor) -> None:
    """Weights are rounded to 8 bits where operands are bf16; all else is float32."""
    bound = (2**-8 if engine.uses_bf16 else 2e-5) * engine.expected(of_sizes=True) + 1e-6
    assert ((out - engine.expected()).abs() <= bound).all()


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
        st.tuples(st.integers(0, 660), st.integers(1, 3) | st.integers(1, 40)),
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


def in_chunks(engine: Engine, index: int, bounds: list[int]) -> Tensor:
    return torch.cat([engine.step({index: b - a})[index] for a, b in pairwise(bounds)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "model",
    [
        Model(group=3, head_dim=16),
        Model(group=7, head_dim=20, block_size=32, window=90),
        Model(group=1, head_dim=48, cap=5.0, has_alibi=True),
        Model(group=2, head_dim=16, has_sinks=True, log_n=300, window=200),
        Model(group=4, head_dim=16, sparse=SPARSE),
        LATENT,
        Model(group=2, head_dim=24, value_dim=40),
    ],
)
def test_bits_depend_on_the_sequence_alone(
    cpu_kernels: CpuKernels, dtype: torch.dtype, model: Model
) -> None:
    """Prefilled at once, in chunks, token by token; alone or beside others; on 1 to 3 threads."""
    model = Model(**{**vars(model), "dtype": dtype})
    length = 540  # into the third span
    sequence = Sequence(model, length, 1)
    at_once = Engine(cpu_kernels, [sequence]).step({0: length})[0]

    chunks = in_chunks(
        Engine(cpu_kernels, [sequence], seed=1), 0, [0, 5, 37, 250, 257, 519, length]
    )
    assert torch.equal(chunks, at_once)

    for num_threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, num_threads)
        engine = Engine(kernels, [sequence], seed=2)
        head = engine.step({0: 510})[0]
        tail = in_chunks(engine, 0, list(range(510, length + 1)))
        assert torch.equal(torch.cat([head, tail]), at_once)

    neighbours = [Sequence(model, 300, 2), sequence, Sequence(model, 33, 3)]
    batched = Engine(cpu_kernels, neighbours, seed=3)
    first = batched.step({0: 299, 1: 400, 2: 10})[1]
    second = batched.step({2: 1, 1: 139, 0: 1})[1]
    third = batched.step({1: 1, 2: 22})[1]
    assert torch.equal(torch.cat([first, second, third]), at_once)


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
