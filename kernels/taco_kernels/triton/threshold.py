"""Where a filter cuts: binary search over ordered keys, in the registers of one program.

A cut is a key: tokens with at least that key are kept, so that all that tie with the last one are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def greatest_cut(keys, amounts, target, lowest, greatest):
    """The greatest cut from `lowest` to `greatest` that keeps at least `target` of the amounts, or
    else `lowest`. Amounts are integers, not negative."""
    low, high = lowest, greatest
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # the mean, rounded up, without an overflow
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
    """Inverse CDF over weights [groups, members] in the order of memory.

    Returns:
        The group and the member with which the sum of the weights first exceeds `share`, which must
        be less than all of them together: a member whose weight is not 0.
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
    """The integer share in [0, total) that a float64 fraction in [0, 1) names; total > 0."""
    return tl.minimum((fraction * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def nucleus_weight(top_p, total):
    """What the tokens of a nucleus must weigh together, int64 and at least 1."""
    return tl.maximum((top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
