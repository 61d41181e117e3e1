"""Which gradients of a backward pass share a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadyGradient:
    """A gradient of the backward pass: when it was ready, in seconds, and its bytes."""

    seconds: float
    num_bytes: int


def buckets_of(gradients: Sequence[ReadyGradient], limit: int) -> list[list[int]]:
    """Indices of the gradients of each bucket, in the order in which they are ready.

    Args:
        limit: bytes of a bucket, which a single gradient may exceed.
    """
    buckets: list[list[int]] = []
    filled = 0
    for index in sorted(range(len(gradients)), key=lambda one: gradients[one].seconds):
        size = gradients[index].num_bytes
        if not buckets or filled + size > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets
