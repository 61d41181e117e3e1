"""Runs draft trees as sequences, for kernels that support sequences only.

A tree's tokens are in depth-first order, so the tree splits into paths: runs of tokens that each
follow the one before. The tokens of a path have consecutive positions. Each path reads KV at the
places of a plain sequence, so its tokens get the bits of plain decoding, whatever other paths the
tree has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_proto.steps import IntArray
from taco_worker.models.step_model import ModelInput

SlotArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TreePaths:
    """A step whose sequences are paths.

    The first path of a sequence uses the sequence's own blocks. Every other path uses spare blocks
    from the block in which it begins; the blocks before it belong to the path that it leaves.

    Attributes:
        query_start: int32 [num_paths + 1], first token of each path.
        seq_lens: int32 [num_paths], tokens up to the path's end.
        block_tables: int32 [num_paths, max_blocks].
        num_spares: number of used spare blocks, counted from the first.
        sources, targets: int64 KV slots that each layer copies into the spare blocks: the tokens
            before a path in the block in which it begins.
        kv_slots: int64 [num_tokens], where each token's KV is written.
    """

    query_start: IntArray
    seq_lens: IntArray
    block_tables: IntArray
    num_spares: int
    sources: SlotArray
    targets: SlotArray
    kv_slots: SlotArray


def cut_into_paths(
    inputs: ModelInput, block_size: int, first_spare: int, max_spares: int
) -> TreePaths:
    """Split the trees of a step into paths.

    Args:
        inputs: a step with `parents`.
        first_spare: spare blocks are first_spare … first_spare + max_spares - 1.

    Raises:
        ValueError: there are too few spare blocks.
    """
    parents, positions, num_tokens = inputs.parents, inputs.positions, inputs.positions.size
    assert parents is not None
    begins = parents != np.arange(-1, num_tokens - 1)
    begins[inputs.query_start[:-1]] = True
    starts = np.flatnonzero(begins)
    query_start = np.append(starts, num_tokens).astype(np.int32)
    last_positions = positions[query_start[1:] - 1]
    path_of = np.cumsum(begins) - 1
    sequences = np.searchsorted(inputs.query_start, starts, side="right") - 1
    tables = inputs.block_tables[sequences]

    sources: list[int] = []
    targets: list[int] = []
    spare = first_spare
    for path in np.flatnonzero(parents[starts] >= 0).tolist():
        start = int(starts[path])
        table, begin = tables[path], int(positions[start])
        first, end = begin // block_size, int(last_positions[path]) // block_size + 1
        if spare + end - first > first_spare + max_spares:
            raise ValueError(f"the trees of a step need more than {max_spares} spare KV blocks")
        table[:first] = tables[path_of[parents[start]], :first]
        table[first:end] = np.arange(spare, spare + end - first)
        spare += end - first
        own_table = inputs.block_tables[sequences[path]]
        ancestor = int(parents[start])
        for position in range(begin - 1, first * block_size - 1, -1):
            source = own_table if ancestor < 0 else tables[path_of[ancestor]]
            block, offset = divmod(position, block_size)
            sources.append(int(source[block]) * block_size + offset)
            targets.append(int(table[block]) * block_size + offset)
            ancestor = int(parents[ancestor]) if ancestor >= 0 else -1
    kv_blocks = tables[path_of, positions // block_size].astype(np.int64)
    return TreePaths(
        query_start=query_start,
        seq_lens=last_positions + 1,
        block_tables=tables,
        num_spares=spare - first_spare,
        sources=np.array(sources, dtype=np.int64),
        targets=np.array(targets, dtype=np.int64),
        kv_slots=kv_blocks * block_size + positions % block_size,
    )
