"""The KV cache of a draft head's one layer, by slot."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from taco_proto.steps import IntArray

_BLOCK_SIZE = 64
_FIRST_BLOCKS = 16


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


class SlotKV:
    """KV blocks, allocated to slots as their sequences grow; the pool grows when it runs out.

    A slot holds consecutive tokens. They need not begin with the sequence's first token: no step
    computes tokens that the prefix cache holds.

    Attributes:
        num_tokens: int32 [max_num_seqs], tokens of each slot.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        *,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self._first_positions = np.zeros(max_num_seqs, dtype=np.int32)
        max_blocks = -(-max_model_len // _BLOCK_SIZE)
        self._tables = np.full((max_num_seqs, max_blocks), -1, dtype=np.int64)
        self._num_blocks = np.zeros(max_num_seqs, dtype=np.int32)
        self._free: list[int] = []
        self._row = (num_kv_heads, head_dim)
        # Keys, values; zeros, because masked entries must be finite numbers.
        self._data = torch.zeros((2, 0, _BLOCK_SIZE, *self._row), dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        """Memory of all blocks."""
        return self._data.nbytes

    @property
    def bytes_per_token(self) -> int:
        num_heads, head_dim = self._row
        return 2 * num_heads * head_dim * self._data.itemsize

    @property
    def padding_bytes(self) -> int:
        """Maximum memory of the unused ends of all slots' last blocks."""
        return self.num_tokens.size * (_BLOCK_SIZE - 1) * self.bytes_per_token

    def reserve(self, num_tokens: int) -> None:
        """Allocate blocks for `num_tokens` tokens in any distribution over slots. All slots must be
        empty: the old blocks are freed first."""
        num_blocks = (num_tokens + self.num_tokens.size * (_BLOCK_SIZE - 1)) // _BLOCK_SIZE
        self._data = self._data.new_zeros((2, 0, *self._data.shape[2:]))
        self._data = self._data.new_zeros((2, num_blocks, *self._data.shape[2:]))
        self._free = list(range(num_blocks))

    def clear(self) -> None:
        self.release(np.arange(self.num_tokens.size, dtype=np.int32))

    def release(self, slots: IntArray) -> None:
        """Drop the slots' tokens and free their blocks."""
        for slot in slots[self._num_blocks[slots] > 0].tolist():
            self._free += self._tables[slot, : self._num_blocks[slot]].tolist()
        self._tables[slots] = -1
        self._num_blocks[slots] = 0
        self.num_tokens[slots] = 0

    def write(
        self, slots: IntArray, positions: IntArray, counts: IntArray, keys: Tensor, values: Tensor
    ) -> None:
        """Write tokens of each slot from a position on, and drop what followed there. If they do
        not continue the slot's tokens, the slot's old tokens are dropped too.

        Args:
            positions, counts: the position of the first token, and the number of tokens;
                [num_rows].
            keys, values: [sum(counts), num_kv_heads, head_dim].
        """
        starts = positions - self._first_positions[slots]
        is_apart = (starts < 0) | (starts > self.num_tokens[slots])
        self._first_positions[slots] = np.where(is_apart, positions, self._first_positions[slots])
        starts = np.where(is_apart, 0, starts)
        self.num_tokens[slots] = starts + counts
        self._deal(slots)
        ends = np.cumsum(counts)
        within = np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
        blocks = self._tables[np.repeat(slots, counts), within // _BLOCK_SIZE]
        places = torch.from_numpy(blocks * _BLOCK_SIZE + within % _BLOCK_SIZE)
        rows = self._data.view(2, -1, *self._row)
        places = places.to(rows.device)
        rows[0, places], rows[1, places] = keys, values

    def read(self, slots: IntArray, room: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [num_rows, longest + room, num_kv_heads, head_dim] each.

        Entries past a slot's `num_tokens` are undefined. The last `room` entries of each row are
        for the caller to fill.
        """
        longest = int(self.num_tokens[slots].max())
        num_blocks = -(-longest // _BLOCK_SIZE)
        tables = torch.from_numpy(self._tables[slots, :num_blocks].clip(min=0))
        blocks = self._data[:, tables.to(self._data.device)].flatten(2, 3)
        copies = blocks.new_empty((2, slots.size, longest + room, *self._row))
        copies[:, :, :longest] = blocks[:, :, :longest]
        return copies[0], copies[1]

    def groups(self, slots: IntArray, max_bytes: int) -> list[slice]:
        """Split rows into runs whose copies by `read` take at most `max_bytes` each (a single row
        may take more); all rows of a run are padded to the longest."""
        lengths = self.num_tokens[slots].tolist()
        max_tokens = max_bytes // self.bytes_per_token
        groups, start, longest = [], 0, 0
        for row, length in enumerate(lengths):
            longest = max(longest, length)
            if row > start and (row + 1 - start) * longest > max_tokens:
                groups.append(slice(start, row))
                start, longest = row, length
        groups.append(slice(start, len(lengths)))
        return groups

    def _deal(self, slots: IntArray) -> None:
        """Allocate blocks for all tokens of the slots."""
        wanted = -(-self.num_tokens[slots] // _BLOCK_SIZE)
        num_new = int(np.maximum(wanted - self._num_blocks[slots], 0).sum())
        while num_new > len(self._free):
            self._grow()
        for slot, count in zip(slots.tolist(), wanted.tolist(), strict=True):
            for index in range(int(self._num_blocks[slot]), count):
                self._tables[slot, index] = self._free.pop()
            self._num_blocks[slot] = max(count, int(self._num_blocks[slot]))

    def _grow(self) -> None:
        """Double the number of blocks."""
        num_blocks = self._data.shape[1]
        num_new = max(num_blocks, _FIRST_BLOCKS)
        fresh = self._data.new_zeros((2, num_new, *self._data.shape[2:]))
        self._data = torch.cat([self._data, fresh], dim=1)
        self._free += range(num_blocks, num_blocks + num_new)
