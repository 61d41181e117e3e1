"""Sorts the pairs (row, rank of a chosen expert) by expert, in blocks of one expert each.

The counts stay on the device: the grid of a grouped product covers the most blocks that any choice
can need, and programs past the last block end at once. So a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK = 1024


class ExpertOrder(NamedTuple):
    """Pairs sorted by expert. A pair is numbered row * top_k + rank.

    Attributes:
        pairs: int32 [max_blocks * block_rows], sorted by expert, then by number; each expert's
            pairs are padded to whole blocks with `num_pairs`.
        block_experts: int32 [max_blocks], the expert of each block.
        num_blocks: int32 [1], blocks in use.
        num_pairs, block_rows: known to the host.
    """

    pairs: Tensor
    block_experts: Tensor
    num_blocks: Tensor
    num_pairs: int
    block_rows: int

    @property
    def max_blocks(self) -> int:
        return self.block_experts.shape[0]


def sort_pairs(ids: Tensor, num_experts: int, block_rows: int) -> ExpertOrder:
    """Sorts in two launches, without host synchronization.

    Args:
        ids: int32 [num_rows, top_k], contiguous; each is an expert's.
        block_rows: pairs of a block.

    Raises:
        ValueError: the ids are not contiguous int32.
    """
    if ids.dtype != torch.int32 or not ids.is_contiguous():
        raise ValueError(f"ids must be contiguous int32, not {ids.dtype} {ids.stride()}")
    num_pairs = ids.numel()
    max_hit = min(num_experts, num_pairs)
    max_blocks = max_hit + (num_pairs - max_hit) // block_rows
    device = ids.device
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    order = ExpertOrder(
        torch.empty(max_blocks * block_rows, dtype=torch.int32, device=device),
        torch.empty(max_blocks, dtype=torch.int32, device=device),
        torch.empty(1, dtype=torch.int32, device=device),
        num_pairs,
        block_rows,
    )
    chunk = min(_CHUNK, triton.next_power_of_2(max(num_pairs, 1)))
    _count_kernel[(num_experts,)](ids, counts, num_pairs, CHUNK=chunk)
    _place_kernel[(num_experts,)](
        ids,
        counts,
        order.pairs,
        order.block_experts,
        order.num_blocks,
        num_pairs,
        NUM_EXPERTS=num_experts,
        EXPERTS_BLOCK=triton.next_power_of_2(num_experts),
        BLOCK_ROWS=block_rows,
        CHUNK=chunk,
    )
    return order


@triton.jit
def _count_kernel(ids, counts, num_pairs, CHUNK: tl.constexpr):
    expert = tl.program_id(0)
    total = tl.zeros([CHUNK], tl.int32)
    for start in range(0, num_pairs, CHUNK):
        pairs = start + tl.arange(0, CHUNK)
        own = tl.load(ids + pairs, mask=pairs < num_pairs, other=-1) == expert
        total += own.to(tl.int32)
    tl.store(counts + expert, tl.sum(total, axis=0))


@triton.jit
def _place_kernel(
    ids,
    counts,
    sorted_pairs,
    block_experts,
    num_blocks,
    num_pairs,
    NUM_EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    expert = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_BLOCK)
    all_counts = tl.load(counts + experts, mask=experts < NUM_EXPERTS, other=0)
    all_blocks = (all_counts + BLOCK_ROWS - 1) // BLOCK_ROWS
    first_block = tl.sum(tl.where(experts < expert, all_blocks, 0), axis=0)
    own_blocks = tl.sum(tl.where(experts == expert, all_blocks, 0), axis=0)
    own_count = tl.sum(tl.where(experts == expert, all_counts, 0), axis=0)
    if expert == 0:
        tl.store(num_blocks, tl.sum(all_blocks, axis=0))
    for block in range(own_blocks):
        tl.store(block_experts + first_block + block, expert)
    begin = first_block * BLOCK_ROWS
    places = tl.arange(0, BLOCK_ROWS)
    past = begin + own_count + places
    tl.store(sorted_pairs + past, num_pairs, mask=past < begin + own_blocks * BLOCK_ROWS)
    for start in range(0, num_pairs, CHUNK):
        pairs = start + tl.arange(0, CHUNK)
        own = tl.load(ids + pairs, mask=pairs < num_pairs, other=-1) == expert
        count = own.to(tl.int32)
        tl.store(sorted_pairs + begin + tl.cumsum(count, 0) - count, pairs, mask=own)
        begin += tl.sum(count, axis=0)
