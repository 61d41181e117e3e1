"""Bucket sizes on links that one can compute by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from support.link_costs import costs
from taco_train.lightcc.cost_model import Buffer, Line, choose
from taco_train.lightcc.fusion import fusion_bytes
from taco_train.lightcc.negotiation.buckets import ReadyGradient, buckets_of
from taco_train.lightcc.settings import Settings

MIB = 1 << 20


def gradients(count: int, num_bytes: int, interval: float) -> list[ReadyGradient]:
    return [ReadyGradient(index * interval, num_bytes) for index in range(count)]


def test_explicit_fusion_wins() -> None:
    for explicit in (0, 12345):
        settings = Settings(fusion_bytes=explicit)
        assert fusion_bytes(gradients(9, MIB, 0.1), costs(100), settings) == explicit


def test_latency_makes_buckets_large() -> None:
    """Gradients that are ready at once: one message time for all."""
    slow_start = costs(1e5, latency=0.05)
    assert fusion_bytes(gradients(64, 64 << 10, 0), slow_start, Settings()) >= 4 * MIB


def test_slow_backward_makes_buckets_small() -> None:
    """Without latency, the last bucket alone is not hidden behind the backward pass."""
    no_latency = replace(costs(200, latency=0), memory=Line(0, 0.5e-9))
    assert fusion_bytes(gradients(64, MIB, 0.2), no_latency, Settings()) <= MIB


def test_bucket_cost_on_the_host_makes_buckets_larger() -> None:
    link = replace(costs(1e4, latency=0), memory=Line(0, 0.5e-9))
    sizes = [
        fusion_bytes(gradients(512, 64 << 10, 1e-4), link, Settings(), bucket_seconds=cost)
        for cost in (0.0, 1e-2)
    ]
    assert sizes[0] < sizes[1]


def test_fusion_is_the_best_of_all_candidates() -> None:
    """Against a simulation over lists of buckets."""
    ready = gradients(20, 300_000, 0.01)
    link = costs(500)

    def simulated(limit: int) -> float:
        buckets: list[list[ReadyGradient]] = []
        for one in ready:
            size = sum(other.num_bytes for other in buckets[-1]) if buckets else 0
            if buckets and size + one.num_bytes <= limit:
                buckets[-1].append(one)
            else:
                buckets.append([one])
        end = 0.0
        for bucket in buckets:
            choice = choose(Buffer(sum(one.num_bytes for one in bucket)), link, Settings())
            end = max(end, bucket[-1].seconds) + choice.seconds[choice.plan]
        return end

    candidates = [100_000, *itertools.accumulate([300_000] * 20)]
    chosen = fusion_bytes(ready, link, Settings(), candidates=candidates)
    assert simulated(chosen) == pytest.approx(min(map(simulated, candidates)))


def test_buckets_follow_the_order_of_readiness() -> None:
    ready = [ReadyGradient(seconds, 4) for seconds in (0.3, 0.1, 0.2, 0.0)]
    assert buckets_of(ready, 8) == [[3, 1], [2, 0]]
    assert buckets_of([ReadyGradient(0, 100), *ready], 8) == [[0], [4, 2], [3, 1]]
