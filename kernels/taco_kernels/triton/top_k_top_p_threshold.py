"""Thresholds of top_k and top_p: binary search over ordered keys, in one program's registers.

A cut is a key: tokens with at least that key are kept, including all that tie with the last one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def greatest_cut(keys, amounts, target, lowest, greatest):
    """The greatest cut from `lowest` to `greatest` that keeps amounts of at least `target`, or else
    `lowest`. Amounts are non-negative integers."""
    low, high = lowest, greatest
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # the mean, rounded up, without overflow
        is_enough = tl.sum(tl.where(keys >= middle, amounts, 0)) >= target
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle - 1)
    return low


@triton.jit
def least_cut(keys, limit, lowest, greatest):
    """The least cut from `lowest` to `greatest` that keeps at most `limit` of the keys, or else
    `greatest`."""
    low, high = lowest, greatest
    while low < high:
        middle = (low & high) + ((low ^ high) >> 1)  # the mean, rounded down
        is_few = tl.sum((keys >= middle).to(tl.int32)) <= limit
        high = tl.where(is_few, middle, high)
        low = tl.where(is_few, low, middle + 1)
    return low


@triton.jit
def find_share(weights, share):
    """Inverse CDF over weights [groups, members] in memory order.

    Returns:
        The group and the member at which the cumulative weight first exceeds `share`, which must be
        less than the total: a member whose weight is not 0.
    """
    groups = tl.sum(weights, axis=1)
    group = tl.sum((tl.cumsum(groups, 0) <= share).to(tl.int32))
    numbers = tl.arange(0, weights.shape[0])
    before = tl.sum(tl.where(numbers < group, groups, 0))
    members = tl.sum(tl.where(numbers[:, None] == group, weights, 0), axis=0)
    member = tl.sum((tl.cumsum(members, 0) <= share - before).to(tl.int32))
    return group, member


@triton.jit
def share_of(fraction, total):
    """The integer share in [0, total) of a float64 fraction in [0, 1); total > 0."""
    return tl.minimum((fraction * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def nucleus_weight(top_p, total):
    """The minimum total weight of a nucleus, int64 and at least 1."""
    return tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
