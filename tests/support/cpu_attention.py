"""Sequences in a paged cache of the CPU kernels, and what their attention should be."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.cpu.attention import paged_attention
from taco_kernels.cpu.kv_cache import PagedBatch, PagedKV, write_kv
from taco_kernels.kv_entry import EntryScales, KVEntry
from taco_kernels.kv_format import KVFormat
from taco_kernels.library import CpuKernels
from taco_kernels.reference.attention import paged_attention as reference

_OF_TOKENS = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
LAYER = 1  # of two
FORMATS = {
    **{str(dtype).removeprefix("torch."): KVFormat(dtype) for dtype in _OF_TOKENS},
    "float8_e4m3fn, entry scales": KVFormat(
        torch.float8_e4m3fn, (EntryScales(1.0, 1.0), EntryScales(0.011, 0.005))
    ),
}


@dataclass(frozen=True)
class Model:
    """Parameters that all sequences share."""

    format: KVFormat = FORMATS["bfloat16"]
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
    def kv_format(self) -> KVFormat:
        """The format, where a latent entry has one scale."""
        if not self.is_latent or self.format.scales is None:
            return self.format
        scales = (replace(entry, value=entry.key) for entry in self.format.scales)
        return replace(self.format, scales=tuple(scales))

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
            model.kv_format,
            model.block_size,
            [model.entry] * (LAYER + 1),
        )
        self.cache.memory.fill_(0xFF)
        order = torch.randperm(sum(needed) + 1, generator=torch.Generator().manual_seed(seed))
        self.tables = torch.full((len(sequences), max(needed)), -1, dtype=torch.int32)
        for index, blocks in enumerate(order.int()[: sum(needed)].split(needed)):
            self.tables[index, : len(blocks)] = blocks
        self.seq_lens = [0] * len(sequences)

    def prefill(self, counts: list[int]) -> None:
        """Writes keys and values of the next `counts[i]` tokens of sequence i."""
        self._write(dict(enumerate(counts)))

    def step(self, counts: dict[int, int]) -> dict[int, Tensor]:
        """The next `counts[i]` tokens of sequence i, all in one batch; their outputs."""
        parts = self._write(counts)
        queries = torch.cat([sequence.queries[span] for sequence, span in parts])
        out = self.attend(queries)
        return dict(zip(counts, out.split(list(counts.values())), strict=True))

    def _write(self, counts: dict[int, int]) -> list[tuple[Sequence, slice]]:
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
        return parts

    def attend(self, queries: Tensor) -> Tensor:
        """Attention of the last step's tokens."""
        self.queries = queries
        return paged_attention(
            self.kernels, queries, self.cache, self.batch, LAYER, self.model.options()
        )

    def expected(self) -> tuple[Tensor, Tensor]:
        """The last step by the reference, from what the cache holds; and of the values' sizes."""
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
            queries = queries.bfloat16()
        both = reference(  # with the same weights, which take longest
            queries.double(),
            keys,
            torch.cat([values, values.abs()], dim=-1),
            self.batch.query_start_loc,
            self.batch.seq_lens,
            self.batch.block_tables,
            model.options(),
        )
        out, of_sizes = both.chunk(2, dim=-1)
        return out, of_sizes

    @property
    def uses_bf16(self) -> bool:
        """Whether queries and weights are rounded to bf16."""
        return self.model.format.dtype != torch.float32 and self.kernels.bf16_operand_bytes == 2


def assert_near_reference(engine: Engine, out: Tensor) -> None:
    """Weights are rounded to 8 bits where operands are bf16; all else is float32.

    The rounding errors of scores grow with the factor by which log_n multiplies queries.
    """
    log_n = engine.model.log_n
    factor = 1.0 if log_n is None else max(1.0, math.log(max(engine.seq_lens), log_n))
    relative = 2**-8 if engine.uses_bf16 else 2e-5 * factor
    expected, of_sizes = engine.expected()
    assert ((out - expected).abs() <= relative * of_sizes + 1e-6).all()


def in_chunks(engine: Engine, index: int, bounds: list[int]) -> Tensor:
    """Outputs of the tokens from the first bound to the last, one step for each two bounds."""
    return torch.cat([engine.step({index: b - a})[index] for a, b in pairwise(bounds)])
