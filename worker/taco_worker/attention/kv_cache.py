"""The KV cache's tensors of the torch back end: layout, views, and the size of a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from taco_kernels.kv_entry import KVEntry
from taco_kernels.kv_format import KVFormat
from taco_worker.devices.copy_stream import EntryCopies

# A factor on all stored numbers of an entry, or float32 [num_blocks, block_size, num_heads].
Scale = float | Tensor


class KVCache:
    """Keys and values of all entries in blocks of a fixed number of tokens.

    A block's keys and values of all entries are contiguous, so that one copy moves the block. An
    entry whose tokens have scales has those of its keys, then those of its values, behind its
    values.

    Memory is not initialised: the operating system allocates it at the first write. A back end
    must mask what it reads past a sequence's end.

    Attributes:
        entries: the shape of each entry.
        pending_copies: running copies to blocks; each entry waits for its own.
    """

    def __init__(
        self,
        entries: Sequence[KVEntry],
        num_blocks: int,
        block_size: int,
        kv_format: KVFormat,
        device: torch.device,
    ) -> None:
        self.entries = tuple(entries)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._format = kv_format
        size = bytes_per_block(entries, block_size, kv_format)
        self._data = torch.empty((num_blocks, size), dtype=torch.uint8, device=device)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._scales: list[tuple[Scale, Scale]] = []
        self._token_bytes: list[int] = []  # of each view, in the order of the memory
        self._end = 0  # bytes of the views of a block
        for index, entry in enumerate(entries):
            key = self._view(kv_format.dtype, entry.num_heads, entry.key_dim)
            self._keys.append(key)
            if entry.latent:
                self._values.append(key[..., : entry.value_dim])
            else:
                self._values.append(self._view(kv_format.dtype, entry.num_heads, entry.value_dim))
            self._scales.append(self._entry_scales(index))
        self.pending_copies = EntryCopies([])

    @property
    def rows(self) -> Tensor:
        """All blocks, uint8 [num_blocks, bytes of a block], entry after entry."""
        return self._data

    def key(self, entry: int) -> Tensor:
        """A view of one entry's keys, [num_blocks, block_size, num_heads, key_dim]."""
        self.pending_copies.wait_for(entry)
        return self._keys[entry]

    def value(self, entry: int) -> Tensor:
        """A view of one entry's values, [num_blocks, block_size, num_heads, value_dim]."""
        self.pending_copies.wait_for(entry)
        return self._values[entry]

    def scales(self, entry: int) -> tuple[Scale, Scale]:
        """The scales of one entry's keys and values; those of tokens are views."""
        self.pending_copies.wait_for(entry)
        return self._scales[entry]

    def copy_tokens(self, sources: Tensor, targets: Tensor) -> None:
        """Copy tokens of all entries between slots; all are read before any is written.

        Args:
            sources, targets: int64 [num_tokens], block * block_size + offset, on the device.
        """
        size = self.block_size
        parts = self._token_parts()
        moved = [part[sources // size, :, sources % size] for part in parts]
        for part, tokens in zip(parts, moved, strict=True):
            part[targets // size, :, targets % size] = tokens

    def _view(self, dtype: torch.dtype, num_heads: int, dim: int) -> Tensor:
        """The next part of each block, [num_blocks, block_size, num_heads, dim]."""
        width = num_heads * dim * dtype.itemsize
        start, self._end = self._end, self._end + self.block_size * width
        self._token_bytes.append(width)
        part = self._data[:, start : self._end].view(dtype)
        return part.view(self.num_blocks, self.block_size, num_heads, dim)

    def _entry_scales(self, index: int) -> tuple[Scale, Scale]:
        """Of the entry that `_view` has just placed."""
        if not self._format.has_token_scales:
            fixed = self._format.of_entry(index)
            return (1.0, 1.0) if fixed is None else (fixed.key, fixed.value)
        entry = self.entries[index]
        keys = self._view(torch.float32, entry.num_heads, 1).squeeze(-1)
        if entry.latent:
            return keys, keys
        return keys, self._view(torch.float32, entry.num_heads, 1).squeeze(-1)

    def _token_parts(self) -> list[Tensor]:
        """The cache as few tensors of tokens, uint8 [num_blocks, count, block_size, bytes].

        Adjacent views of one size make one tensor, so that one operation moves them.
        """
        parts, offset = [], 0
        for width, same in groupby(self._token_bytes):
            shape = (len(list(same)), self.block_size, width)
            num_bytes = shape[0] * shape[1] * shape[2]
            parts.append(self.rows[:, offset : offset + num_bytes].unflatten(1, shape))
            offset += num_bytes
        return parts


def bytes_per_block(entries: Iterable[KVEntry], block_size: int, kv_format: KVFormat) -> int:
    """Size of one block: `block_size` tokens of all entries."""
    return block_size * kv_format.bytes_per_token(entries)
