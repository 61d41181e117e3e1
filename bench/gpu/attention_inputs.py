"""Batches of paged attention to measure with, their floors, and what they must give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpu.context import Device
from torch import Tensor

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
    """`batch` sequences of `context` tokens each, of which `new` are the step's."""

    batch: int
    context: int
    new: int = 1

    @property
    def name(self) -> str:
        if self.new == 1:
            return f"decode {self.batch}x{self.context}"
        if self.new == self.context:
            return f"prefill {self.batch}x{self.context}"
        return f"chunk {self.batch}x{self.new} of {self.context}"

    @property
    def num_tokens(self) -> int:
        return self.batch * self.new

    def kv_bytes(self, heads: Heads, itemsize: int) -> int:
        """Keys and values of one layer: what a step must read at least."""
        return 2 * self.batch * self.context * heads.kv * heads.dim * itemsize

    def operations(self, heads: Heads) -> int:
        """Of the pairs of a query and a key that it sees; a multiply-add is two."""
        pairs = self.batch * self.new * (2 * self.context - self.new + 1) // 2
        return 4 * pairs * heads.query * heads.dim


@dataclass(frozen=True, slots=True)
class PagedInputs:
    """A batch over the KV of some layers, which take turns.

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
        """Keys and values of a layer, as the kernels take them."""
        return self.kv[:, layer, 0], self.kv[:, layer, 1]

    def dense(self, layer: int) -> tuple[Tensor, Tensor]:
        """The same in one piece, [batch, num_kv_heads, context, head_dim]."""
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
    """Random numbers, with as many layers as it takes to leave the L2."""
    device, dtype = where.device, where.dtype
    num_layers = num_layers or where.num_sets(case.kv_bytes(heads, dtype.itemsize))
    blocks_each = math.ceil(case.context / BLOCK_SIZE)
    num_blocks = case.batch * blocks_each
    shape = (num_blocks, num_layers, 2, BLOCK_SIZE, heads.kv, heads.dim)
    order = torch.randperm(num_blocks, device=device).int()
    rows = (case.num_tokens, heads.query, heads.dim)
    return PagedInputs(
        case=case,
        heads=heads,
        queries=[torch.randn(rows, device=device, dtype=dtype) for _ in range(num_layers)],
        kv=torch.randn(shape, device=device, dtype=dtype),
        batch=AttentionBatch(
            query_start=torch.arange(case.batch + 1, device=device, dtype=torch.int32) * case.new,
            seq_lens=torch.full((case.batch,), case.context, device=device, dtype=torch.int32),
            block_tables=order.view(case.batch, blocks_each),
            num_seqs=case.batch,
            max_query_len=case.new,
            max_seq_len=case.context,
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
    case = inputs.case
    num_rows = min(_CHECKED_ROWS, case.new)
    keys, values = inputs.caches(layer)
    difference = size = 0.0
    for sequence in {0, case.batch - 1}:
        table = inputs.batch.block_tables[sequence].long()
        key, value = (cache[table].flatten(0, 1)[: case.context] for cache in (keys, values))
        rows = slice((sequence + 1) * case.new - num_rows, (sequence + 1) * case.new)
        wanted = _plain_attention(inputs.queries[layer][rows], key, value, inputs.scale)
        difference += float((output[rows].float() - wanted).square().sum())
        size += float(wanted.square().sum())
    return math.sqrt(difference / size)


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
