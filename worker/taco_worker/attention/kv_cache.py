"""The KV cache's tensors of the torch back end: layout, views, and the size of a block."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_worker.devices.copy_stream import LayerCopies
from taco_worker.models.decoder_config import DecoderConfig


class KVCache:
    """Keys and values of all layers in blocks of a fixed number of tokens.

    A block's keys and values of all layers are contiguous, so that one copy moves the block.
    Memory is not initialised: the operating system allocates it at the first write. A back end
    must mask what it reads past a sequence's end.

    Attributes:
        pending_copies: running copies to blocks; each layer waits for its own.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self.pending_copies = LayerCopies([])

    @property
    def rows(self) -> Tensor:
        """A view of all blocks, uint8 [num_blocks, bytes of a block], layer after layer."""
        return self._data.view(torch.uint8).view(self.num_blocks, -1)

    def key(self, layer: int) -> Tensor:
        """A view of one layer's keys, [num_blocks, block_size, num_kv_heads, head_dim]."""
        self.pending_copies.wait_for(layer)
        return self._data[:, layer, 0]

    def value(self, layer: int) -> Tensor:
        """A view of one layer's values, [num_blocks, block_size, num_kv_heads, head_dim]."""
        self.pending_copies.wait_for(layer)
        return self._data[:, layer, 1]

    def copy_tokens(self, sources: Tensor, targets: Tensor) -> None:
        """Copy tokens of all layers between slots; all are read before any is written.

        Args:
            sources, targets: int64 [num_tokens], block * block_size + offset, on the device.
        """
        memory = self._data.view(torch.uint8)  # torch cannot index every dtype
        size = self.block_size
        moved = memory[sources // size, :, :, sources % size]
        memory[targets // size, :, :, targets % size] = moved


def bytes_per_block(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Size of one block's keys and values in all layers."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    return per_token * block_size
