"""Runs a draft head's layer over the nodes of all trees, one level at a time.

Each node is a sequence of one token: its KV lies behind that of its ancestors, as in plain
decoding. So every attention back end computes trees, and none needs masks. A node's path has a
storage: the blocks from the last one of its slot's tokens on. A node's first child continues the
node's storage, the others continue copies of it. A tree needs as many storages as a level has
nodes, since storages of nodes without children are used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_proto.steps import IntArray
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.speculation.heads.draft_tree import Expansion, LongArray
from taco_worker.speculation.heads.slot_blocks import BLOCK_SIZE, SlotBlocks

# Blocks of a storage: a path of up to 17 nodes may begin at the end of a block.
TAIL_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class TreeRoots:
    """The sequences that trees continue.

    Attributes:
        slots: int32 [num_rows].
        positions: int32 [num_rows], of the root's children in the layer.
    """

    slots: IntArray
    positions: IntArray


class TreeLevels:
    """The trees of one draft. Blocks of the slots' tokens stay as they are."""

    def __init__(
        self,
        layer: StepModel,
        target: StepModel,
        blocks: SlotBlocks,
        roots: TreeRoots,
        width: int,
    ) -> None:
        """
        Args:
            layer: embeddings beside features to the next features.
            width: maximum number of nodes in a level of a tree.
        """
        self._layer, self._target, self._blocks = layer, target, blocks
        self._positions = roots.positions
        num_rows = roots.slots.size
        self._lens = blocks.num_tokens[roots.slots]
        self._first = self._lens // BLOCK_SIZE  # the block in which paths begin
        self._spares = blocks.take(num_rows * width * TAIL_BLOCKS)
        # Block ids of each storage; the first one is the slot's own.
        self._tails = self._spares.reshape(num_rows, width, TAIL_BLOCKS).copy()
        self._tables = np.zeros((num_rows, int(self._first.max()) + TAIL_BLOCKS), dtype=np.int32)
        columns = min(self._tables.shape[1], blocks.tables.shape[1])
        self._tables[:, :columns] = blocks.tables[roots.slots, :columns]
        is_partial = np.flatnonzero(self._lens % BLOCK_SIZE)
        self._tails[is_partial, 0, 0] = self._tables[is_partial, self._first[is_partial]]
        self._storages = np.zeros((num_rows, 1), dtype=np.int64)  # of the last level's nodes
        self._level = 0

    def close(self) -> None:
        """Free the blocks of the trees."""
        self._blocks.give_back(self._spares)

    def run(self, expansion: Expansion, features: Tensor) -> Tensor:
        """Compute one more level.

        Args:
            features: [num_rows, nodes of the last expansion, hidden_size], its outputs.

        Returns:
            [num_rows, width, hidden_size], the feature after each node.
        """
        num_rows, width = expansion.token_ids.shape
        self._assign_storages(expansion.places)
        places = torch.from_numpy(expansion.places).to(features.device)
        of_parents = features.gather(1, places[:, :, None].expand(-1, -1, features.shape[2]))
        embedded = self._target.embed(upload(expansion.token_ids.ravel(), self._target))
        count = num_rows * width
        outputs = self._layer.forward(
            ModelInput(
                token_ids=torch.zeros(count, dtype=torch.int32, device=features.device),
                positions=np.repeat(self._positions + self._level, width).astype(np.int32),
                query_start=np.arange(count + 1, dtype=np.int32),
                seq_lens=np.repeat(self._lens + self._level + 1, width).astype(np.int32),
                block_tables=self._node_tables(),
                output_rows=np.arange(count, dtype=np.int32),
                columns=torch.cat([embedded, of_parents.flatten(0, 1)], dim=1),
            )
        )
        self._level += 1
        return outputs.unflatten(0, (num_rows, width))

    def _assign_storages(self, places: LongArray) -> None:
        """Give each node a storage with the KV of its ancestors."""
        of_parents = np.take_along_axis(self._storages, places, axis=1)
        is_same = places[:, :, None] == places[:, None, :]
        is_first = ~np.tril(is_same, -1).any(axis=2)
        is_used = np.zeros(self._tails.shape[:2], dtype=np.bool_)
        np.put_along_axis(is_used, of_parents, True, axis=1)
        unused = np.argsort(is_used, axis=1, kind="stable")
        rank = np.maximum(np.cumsum(~is_first, axis=1) - 1, 0)
        self._storages = np.where(is_first, of_parents, np.take_along_axis(unused, rank, axis=1))
        rows, nodes = np.nonzero(~is_first)
        self._copy(rows, of_parents[rows, nodes], self._storages[rows, nodes])

    def _copy(self, rows: LongArray, sources: LongArray, targets: LongArray) -> None:
        """Copy what storages hold: the end of the slot's tokens, and ancestors."""
        counts = (self._lens % BLOCK_SIZE + self._level)[rows]
        num_tokens = int(counts.sum())
        if not num_tokens:
            return
        within = np.arange(num_tokens) - np.repeat(np.cumsum(counts) - counts, counts)
        of_rows = np.repeat(rows, counts)

        def slots(storages: LongArray) -> LongArray:
            blocks = self._tails[of_rows, np.repeat(storages, counts), within // BLOCK_SIZE]
            return blocks.astype(np.int64) * BLOCK_SIZE + within % BLOCK_SIZE

        self._layer.append_kv(slots(sources), slots(targets))

    def _node_tables(self) -> IntArray:
        """int32 [number of nodes, blocks], the block table of each node."""
        num_rows, width = self._storages.shape
        tables = np.repeat(self._tables[:, None], width, axis=1)
        rows, nodes = np.arange(num_rows)[:, None], np.arange(width)
        tails = self._tails[rows, self._storages]
        for block in range(TAIL_BLOCKS):
            tables[rows, nodes, self._first[:, None] + block] = tails[:, :, block]
        return tables.reshape(num_rows * width, -1)


def upload(values: npt.NDArray[Any], target: StepModel) -> Tensor:
    """Upload integers as indices to the target's device."""
    return torch.from_numpy(values.astype(np.int64)).to(target.device)
