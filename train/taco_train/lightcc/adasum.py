"""Adasum: sums of gradients that do not grow with the number of ranks (arXiv 2006.02924)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taco_train.collective.communicator import Communicator
from taco_train.lightcc.errors import CollectiveError


def adasum(communicator: Communicator, buffer: Tensor, sizes: Sequence[int]) -> None:
    """Combine the ranks' buffers pair by pair, in place; all ranks get the same bits.

    Args:
        buffer: [sum of sizes], floating point.
        sizes: elements of each tensor in the buffer; each is combined by itself.

    Raises:
        CollectiveError: the number of ranks is not a power of two, or the values are integers.
    """
    rank, size = communicator.rank, communicator.size
    if size & (size - 1):
        raise CollectiveError(f"Adasum needs a power of two as number of ranks, not {size}")
    if not buffer.dtype.is_floating_point:
        raise CollectiveError(f"Adasum needs floating-point values, not {buffer.dtype}")
    mine = buffer.to(torch.promote_types(buffer.dtype, torch.float32))
    theirs = torch.empty_like(mine)
    distance = 1
    while distance < size:
        partner = rank ^ distance
        communicator.exchange([(partner, mine)], [(partner, theirs)])
        lower, upper = (mine, theirs) if rank < partner else (theirs, mine)
        mine = torch.cat(
            [combine(a, b) for a, b in zip(lower.split(sizes), upper.split(sizes), strict=True)]
        )
        distance *= 2
    buffer.copy_(mine)


def combine(a: Tensor, b: Tensor) -> Tensor:
    """Two gradients' sum if they are orthogonal, their average if they are equal."""
    wide_a, wide_b = a.double(), b.double()
    dot = torch.dot(wide_a, wide_b)
    of_a = 1 - dot / (2 * torch.dot(wide_a, wide_a)).clamp_min(torch.finfo(torch.float64).tiny)
    of_b = 1 - dot / (2 * torch.dot(wide_b, wide_b)).clamp_min(torch.finfo(torch.float64).tiny)
    return (wide_a * of_a + wide_b * of_b).to(a.dtype)
