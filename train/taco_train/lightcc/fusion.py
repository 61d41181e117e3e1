"""Sizes buckets so that communication ends soonest after the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taco_train.lightcc.cost_model import Buffer, Costs, choose
from taco_train.lightcc.settings import Settings

_BUCKET_BYTES = tuple(1 << power for power in range(16, 29))


@dataclass(frozen=True, slots=True)
class ReadyGradient:
    """A gradient of the backward pass: when it was ready, in seconds, and its bytes."""

    seconds: float
    num_bytes: int


def fusion_bytes(
    gradients: Sequence[ReadyGradient],
    costs: Costs,
    settings: Settings,
    *,
    bucket_seconds: float = 0.0,
    candidates: Iterable[int] = _BUCKET_BYTES,
) -> int:
    """The bucket size with which communication ends first.

    Gradients join a bucket in the order of their times; a full bucket is reduced when its last
    gradient is ready and the bucket before it is done (as in MG-WFBP, arXiv 1811.11141).

    Args:
        gradients: of one backward pass, float32.
        bucket_seconds: cost of a bucket on the host beside its all-reduce.
        candidates: sizes to try, in bytes.

    Returns:
        the setting where there is one, otherwise the best candidate; equal times choose the larger.
    """
    if settings.fusion_bytes is not None:
        return settings.fusion_bytes
    known: dict[int, float] = {}

    def reduce_seconds(num_bytes: int) -> float:
        if num_bytes not in known:
            choice = choose(Buffer(num_bytes), costs, settings)
            known[num_bytes] = bucket_seconds + choice.seconds[choice.plan]
        return known[num_bytes]

    def end(limit: int) -> float:
        free = 0.0
        for bucket in buckets_of(gradients, limit):
            last = max(gradients[index].seconds for index in bucket)
            size = sum(gradients[index].num_bytes for index in bucket)
            free = max(free, last) + reduce_seconds(size)
        return free

    return min(candidates, key=lambda limit: (end(limit), -limit))


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
