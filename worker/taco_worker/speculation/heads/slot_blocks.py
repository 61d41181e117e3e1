"""The KV blocks of a draft head's layer, by slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from taco_proto.steps import IntArray

BLOCK_SIZE = 16
_FIRST_BLOCKS = 64


@runtime_checkable
class DrafterWithKV(Protocol):
    """A drafter that stores keys and values on the model's device.

    Attributes:
        kv_bytes_per_token: for each token in the batch.
        fixed_kv_bytes: independent of the number of tokens.
    """

    kv_bytes_per_token: int
    fixed_kv_bytes: int

    def reserve_kv(self, num_tokens: int) -> None:
        """Allocate the memory for `num_tokens` tokens of all sequences together."""
        ...


class SlotBlocks:
    """Block tables of slots, whose blocks are allocated as their sequences grow.

    A slot holds consecutive tokens. They need not begin with the sequence's first token: no step
    computes tokens that the prefix cache holds.

    Attributes:
        num_tokens: int32 [max_num_seqs], tokens of each slot.
        tables: int32 [max_num_seqs, max_blocks], blocks of each slot; unused entries are 0.
        num_blocks: of the whole pool.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_tokens: int,
        allocate: Callable[[int, bool], None],
    ) -> None:
        """
        Args:
            max_tokens: of a slot.
            allocate: makes the memory of a number of blocks, and keeps the contents of the blocks
                before if its second argument is true.
        """
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.tables = np.zeros((max_num_seqs, -(-max_tokens // BLOCK_SIZE)), dtype=np.int32)
        self.num_blocks = 0
        self._first_positions = np.zeros(max_num_seqs, dtype=np.int32)
        self._num_used = np.zeros(max_num_seqs, dtype=np.int32)
        self._free: list[int] = []
        self._allocate = allocate

    def reset(self, num_blocks: int) -> None:
        """Replace the pool by one of `num_blocks` blocks; all slots must be empty."""
        self._allocate(num_blocks, False)
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks))

    def clear(self) -> None:
        self.release(np.arange(self.num_tokens.size, dtype=np.int32))

    def release(self, slots: IntArray) -> None:
        """Drop the slots' tokens and free their blocks."""
        for slot in slots[self._num_used[slots] > 0].tolist():
            self._free += self.tables[slot, : self._num_used[slot]].tolist()
        self.tables[slots] = 0
        self._num_used[slots] = 0
        self.num_tokens[slots] = 0

    def extend(self, slots: IntArray, positions: IntArray, counts: IntArray) -> None:
        """Give blocks to new tokens of each slot, and drop what followed their first position.

        If they do not continue the slot's tokens, the slot's old tokens are dropped too.

        Args:
            positions, counts: the position of the first token, and the number of tokens;
                [num_rows].
        """
        starts = positions - self._first_positions[slots]
        is_apart = (starts < 0) | (starts > self.num_tokens[slots])
        self._first_positions[slots] = np.where(is_apart, positions, self._first_positions[slots])
        self.num_tokens[slots] = np.where(is_apart, 0, starts) + counts
        wanted = -(-self.num_tokens[slots] // BLOCK_SIZE)
        for row in np.flatnonzero(wanted > self._num_used[slots]).tolist():
            slot, first, end = int(slots[row]), int(self._num_used[slots[row]]), int(wanted[row])
            self.tables[slot, first:end] = self.take(end - first)
            self._num_used[slot] = end

    def take(self, count: int) -> IntArray:
        """Take free blocks; the pool grows if there are too few."""
        while count > len(self._free):
            self._grow()
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return np.array(taken, dtype=np.int32)

    def give_back(self, blocks: IntArray) -> None:
        """Free blocks from `take`."""
        self._free += blocks.ravel().tolist()

    def _grow(self) -> None:
        """Double the number of blocks."""
        before = self.num_blocks
        self.num_blocks = max(2 * before, _FIRST_BLOCKS)
        self._allocate(self.num_blocks, before > 0)
        self._free += range(before, self.num_blocks)
