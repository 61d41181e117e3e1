"""The KV cache's tensors of the torch back end: layout, views, and the size of a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from taco_kernels.kv_entry import KVEntry, elements_per_token
from taco_worker.devices.copy_stream import LayerCopies


class KVCache:
    """Keys and values of all entries in blocks of a fixed number of tokens.

    A block's keys and values of all entries are contiguous, so that one copy moves the block.
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
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.entries = tuple(entries)
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = block_size * elements_per_token(entries)
        self._data = torch.empty((num_blocks, size), dtype=dtype, device=device)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        offset = 0
        for entry in entries:
            key = self._view(offset, entry.num_heads, entry.key_dim)
            self._keys.append(key)
            if entry.latent:
                self._values.append(key[..., : entry.value_dim])
            else:
                after = offset + key[0].numel()
                self._values.append(self._view(after, entry.num_heads, entry.value_dim))
            offset += block_size * entry.elements_per_token
        self.pending_copies = LayerCopies([])

    @property
    def rows(self) -> Tensor:
        """A view of all blocks, uint8 [num_blocks, bytes of a block], entry after entry."""
        return self._data.view(torch.uint8)

    def key(self, entry: int) -> Tensor:
        """A view of one entry's keys, [num_blocks, block_size, num_heads, key_dim]."""
        self.pending_copies.wait_for(entry)
        return self._keys[entry]

    def value(self, entry: int) -> Tensor:
        """A view of one entry's values, [num_blocks, block_size, num_heads, value_dim]."""
        self.pending_copies.wait_for(entry)
        return self._values[entry]

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

    def _view(self, offset: int, num_heads: int, dim: int) -> Tensor:
        part = self._data[:, offset : offset + self.block_size * num_heads * dim]
        return part.view(self.num_blocks, self.block_size, num_heads, dim)

    def _token_parts(self) -> list[Tensor]:
        """The cache as few tensors of tokens, uint8 [num_blocks, count, block_size, bytes].

        Adjacent keys and values of one size make one tensor, so that one operation moves them.
        """
        widths: list[int] = []
        for entry in self.entries:
            widths.append(entry.num_heads * entry.key_dim)
            if not entry.latent:
                widths.append(entry.num_heads * entry.value_dim)
        parts, offset = [], 0
        for width, same in groupby(widths):
            shape = (len(list(same)), self.block_size, width * self._data.itemsize)
            num_bytes = shape[0] * shape[1] * shape[2]
            parts.append(self.rows[:, offset : offset + num_bytes].unflatten(1, shape))
            offset += num_bytes
        return parts


def bytes_per_block(entries: Iterable[KVEntry], block_size: int, dtype: torch.dtype) -> int:
    """Size of one block: `block_size` tokens of all entries."""
    return block_size * elements_per_token(entries) * dtype.itemsize
