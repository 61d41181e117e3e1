"""The KV cache's tensors: how large a block is, how many fit, and where they lie."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_worker.kv_tiers.lane import LayerArrivals
from taco_worker.models.decoder_config import DecoderConfig

# The rest is left to activations, the page cache that holds mapped weights, and other processes.
_CPU_MEMORY_SHARE = 0.5


class KVCache:
    """Keys and values of all layers in blocks of a fixed number of tokens.

    A block's keys and values of all layers lie side by side, so that it can be moved in one piece.
    Memory is not initialised, so that the operating system hands it out as it is first written: a
    back end must not let what it reads past a sequence's end into a result.

    Attributes:
        arrivals: copies to blocks that are under way, for which a layer waits.
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
        self.arrivals = LayerArrivals([])

    @property
    def rows(self) -> Tensor:
        """A view of all blocks, uint8 [num_blocks, bytes of a block], layer after layer."""
        return self._data.view(torch.uint8).view(self.num_blocks, -1)

    def key(self, layer: int) -> Tensor:
        """A view of one layer's keys, [num_blocks, block_size, num_kv_heads, head_dim]."""
        self.arrivals.wait_for(layer)
        return self._data[:, layer, 0]

    def value(self, layer: int) -> Tensor:
        """A view of one layer's values, [num_blocks, block_size, num_kv_heads, head_dim]."""
        self.arrivals.wait_for(layer)
        return self._data[:, layer, 1]

    def copy_tokens(self, sources: Tensor, targets: Tensor) -> None:
        """Copy tokens of all layers between slots; all are read before any is written.

        Args:
            sources, targets: int64 [num_tokens], block * block_size + offset, on the device.
        """
        memory = self._data.view(torch.uint8)  # torch does not index every type
        size = self.block_size
        moved = memory[sources // size, :, :, sources % size]
        memory[targets // size, :, :, targets % size] = moved


def bytes_per_block(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Size of one block's keys and values in all layers."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    return per_token * block_size


def num_cpu_blocks(
    block_bytes: int,
    *,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    available_bytes: int,
) -> int:
    """How many blocks to allocate on a CPU: what a full batch can use, if half the memory holds it.

    Args:
        block_bytes: as `bytes_per_block` says.
        available_bytes: memory that is free after the weights were loaded.

    Raises:
        ValueError: not one block fits.
    """
    blocks_per_sequence = -(-max_model_len // block_size)
    fitting = int(available_bytes * _CPU_MEMORY_SHARE) // block_bytes
    if fitting < 1:
        raise ValueError(
            f"no memory for the KV cache: a block of {block_size} tokens takes "
            f"{block_bytes / 2**20:.1f} MiB, and of the {available_bytes / 2**20:.1f} MiB that are "
            f"available {_CPU_MEMORY_SHARE:.0%} may be used"
        )
    return min(blocks_per_sequence * max_num_seqs, fitting)
