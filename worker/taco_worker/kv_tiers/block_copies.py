"""Copies KV blocks between a device and its host tier.

A step's copies are prepared once and run once for each group of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
from torch import Tensor

from taco_proto.steps import BlockCopies, IntArray
from taco_worker.devices.transfers import Transfers

# Copies a part of every block between two memories, uint8 [num_blocks, bytes of the part]: the
# device's, then the host's. All offloads precede all loads.
CopyPart = Callable[[Tensor, Tensor], None]
PrepareCopies = Callable[[BlockCopies], CopyPart]


def choose_block_copier(transfers: Transfers, part_bytes: int) -> PrepareCopies:
    """The Triton kernel on a GPU, if Triton is installed and a part of a block, of `part_bytes`,
    is whole vectors; otherwise one copy per block.
    """
    if not transfers.overlaps:
        return copy_each
    try:
        from taco_kernels.triton.block_copy import VECTOR_BYTES
    except ImportError:
        return copy_each
    return copy_each if part_bytes % VECTOR_BYTES else copy_by_kernel(transfers)


def copy_each(copies: BlockCopies) -> CopyPart:
    """One copy per block, for CPUs; on a GPU each copy is a launch, which costs host time."""

    def copy_part(device: Tensor, host: Tensor) -> None:
        for source, target in _pairs(copies.offload_sources, copies.offload_targets):
            host[target].copy_(device[source], non_blocking=True)
        for source, target in _pairs(copies.load_sources, copies.load_targets):
            device[target].copy_(host[source], non_blocking=True)

    return copy_part


def copy_by_kernel(transfers: Transfers) -> PrepareCopies:
    """Two kernel launches for any number of blocks, by `taco_kernels.triton.block_copy`.

    Host memory must be pinned, and a part of a block must be whole vectors.
    """
    from taco_kernels.triton.block_copy import copy_blocks

    def prepare(copies: BlockCopies) -> CopyPart:
        @cache
        def ids() -> list[Tensor]:
            """Block ids, uploaded by the first group's copies on the copy stream."""
            columns = (
                *(copies.offload_sources, copies.offload_targets),
                *(copies.load_sources, copies.load_targets),
            )
            return transfers.upload(*(column.astype(np.int64) for column in columns))

        def copy_part(device: Tensor, host: Tensor) -> None:
            offload_sources, offload_targets, load_sources, load_targets = ids()
            copy_blocks(device, host, offload_sources, offload_targets)
            copy_blocks(host, device, load_sources, load_targets)

        return copy_part

    return prepare


def _pairs(sources: IntArray, targets: IntArray) -> Iterable[tuple[int, int]]:
    return zip(sources.tolist(), targets.tolist(), strict=True)
