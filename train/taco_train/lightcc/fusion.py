"""Sizes buckets so that communication ends soonest after the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from taco_train.lightcc.cost_model import Buffer, Costs, choose
from taco_train.lightcc.negotiation.buckets import ReadyGradient, buckets_of
from taco_train.lightcc.settings import Settings

_BUCKET_BYTES = tuple(1 << power for power in range(16, 29))


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
