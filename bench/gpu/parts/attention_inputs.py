"""Inputs of the attention benchmarks: batches, lower bounds, and reference results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu.harness.context import Device
from taco_kernels.triton.attention import AttentionBatch

BLOCK_SIZE = 16
# Rows at the end of a sequence that are compared with the reference.
_CHECKED_ROWS = 16


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    dim: int


LLAMA_8B = Heads(32, 8, 128)


@dataclass(frozen=True, slots=True)
class Case:
    """`batch` sequences of `context` tokens each, of which `new` are computed in the step.

    Attributes:
        beside: other sequences in the same batch, after these.
        is_fp8: KV is stored as float8_e4m3fn.
    """

    batch: int
    context: int
    new: int = 1
    beside: Case | None = None
    is_fp8: bool = False

    @property
    def name(self) -> str:
        beside = f" + {self.beside.name}" if self.beside else ""
        return f"{self._kind}{beside}" + (", fp8 KV" if self.is_fp8 else "")

    @property
    def _kind(self) -> str:
        if self.new == 1:
            return f"decode {self.batch}x{self.context}"
        if self.new == self.context:
            return f"prefill {self.batch}x{self.context}"
        return f"chunk {self.batch}x{self.new} of {self.context}"

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences are equal, as kernels over contiguous KV require."""
        return self.beside is None

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Returns context and new tokens of each sequence."""
        others = self.beside.sequences if self.beside else []
        return [(self.context, self.new)] * self.batch + others

    @property
    def num_tokens(self) -> int:
        return sum(new for _, new in self.sequences)

    @property
    def longest(self) -> int:
        return max(context for context, _ in self.sequences)

    def kv_bytes(self, heads: Heads, itemsize: int) -> int:
        """Returns the bytes of one layer's keys and values: the minimum that a step reads."""
        itemsize = 1 if self.is_fp8 else itemsize
        return 2 * sum(context for context, _ in self.sequences) * heads.kv * heads.dim * itemsize

    def operations(self, heads: Heads) -> int:
        """Returns the operations over visible query-key pairs; a multiply-add counts as two."""
        pairs = sum(new * (2 * context - new + 1) // 2 for context, new in self.sequences)
        return 4 * pairs * heads.query * heads.dim


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """A batch over the KV of several layers, which alternate.

    Attributes:
        queries: of each layer, [num_tokens, num_heads, head_dim].
        kv: [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]; blocks are shuffled, as
            in a pool that has served for a while.
        out: [num_tokens, num_heads, head_dim].
    """

    case: Case
    heads: Heads
    queries: Sequence[Tensor]
    kv: Tensor
    batch: AttentionBatch
    out: Tensor

    @property
    def scale(self) -> float:
        return self.heads.dim**-0.5

    def caches(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns a layer's keys and values in the kernels' layout."""
        return self.kv[:, layer, 0], self.kv[:, layer, 1]

    def dense(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns a layer's keys and values as one tensor, [batch, num_kv_heads, context,
        head_dim].
        """
        keys, values = (
            cache[self.batch.block_tables.long()]
            .flatten(1, 2)[:, : self.case.context]
            .transpose(1, 2)
            .contiguous()
            for cache in self.caches(layer)
        )
        return keys, values


def make_inputs(
    where: Device, case: Case, heads: Heads, num_layers: int | None = None
) -> PagedInputs:
    """Makes random inputs with enough layers to exceed the L2 cache."""
    device, dtype = where.device, where.dtype
    num_layers = num_layers or where.num_sets(case.kv_bytes(heads, dtype.itemsize))
    contexts, new_tokens = zip(*case.sequences, strict=True)
    counts = [math.ceil(context / BLOCK_SIZE) for context in contexts]
    shape = (sum(counts), num_layers, 2, BLOCK_SIZE, heads.kv, heads.dim)
    kv = torch.randn(shape, device=device, dtype=dtype)
    order = torch.randperm(sum(counts), device=device).int()
    tables = torch.nn.utils.rnn.pad_sequence(order.split(counts), batch_first=True)
    starts = torch.tensor([0, *itertools.accumulate(new_tokens)], dtype=torch.int32)
    rows = (case.num_tokens, heads.query, heads.dim)
    return PagedInputs(
        case=case,
        heads=heads,
        queries=[torch.randn(rows, device=device, dtype=dtype) for _ in range(num_layers)],
        kv=kv.to(torch.float8_e4m3fn) if case.is_fp8 else kv,
        batch=AttentionBatch(
            query_start=starts.to(device),
            seq_lens=torch.tensor(contexts, device=device, dtype=torch.int32),
            block_tables=tables,
            num_seqs=len(contexts),
            max_query_len=max(new_tokens),
            max_seq_len=case.longest,
            tree=None,
        ),
        out=torch.empty(rows, device=device, dtype=dtype),
    )


def relative_error(inputs: PagedInputs, layer: int, output: Tensor) -> float:
    """‖output - reference‖ / ‖reference‖ of the last rows of the first and the last sequence.

    The reference is plain attention in float32. NaN where `output` has one anywhere.
    """
    if not bool(output.isfinite().all()):
        return math.nan
    sequences = inputs.case.sequences
    ends = [*itertools.accumulate(new for _, new in sequences)]
    keys, values = inputs.caches(layer)
    difference = size = 0.0
    for sequence in {0, len(sequences) - 1}:
        context, new = sequences[sequence]
        table = inputs.batch.block_tables[sequence, : math.ceil(context / BLOCK_SIZE)].long()
        key, value = (_gather(cache, table)[:context] for cache in (keys, values))
        rows = slice(ends[sequence] - min(_CHECKED_ROWS, new), ends[sequence])
        wanted = _plain_attention(inputs.queries[layer][rows], key, value, inputs.scale)
        difference += float((output[rows].float() - wanted).square().sum())
        size += float(wanted.square().sum())
    return math.sqrt(difference / size)


def _gather(cache: Tensor, table: Tensor) -> Tensor:
    """Returns a cache's blocks as one tensor, [tokens, kv_heads, dim]; as bytes, because torch
    cannot index float8.
    """
    if cache.itemsize == 1:
        return cache.view(torch.uint8)[table].view(cache.dtype).flatten(0, 1)
    return cache[table].flatten(0, 1)


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """query [num_rows, heads, dim], the last of key, value [context, kv_heads, dim]; float32."""
    num_rows, num_heads, _ = query.shape
    context, num_kv_heads, _ = key.shape
    grouped = query.float().unflatten(1, (num_kv_heads, num_heads // num_kv_heads))
    scores = torch.einsum("rkgd,ckd->kgrc", grouped, key.float()) * scale
    positions = torch.arange(context, device=query.device)
    last_seen = positions[context - num_rows :].unsqueeze(1)
    scores = scores.masked_fill(positions > last_seen, -torch.inf)
    output = torch.einsum("kgrc,ckd->rkgd", scores.softmax(-1), value.float())
    return output.flatten(1, 2)
