"""Wall clocks of services differ from each other, and jump while requests run."""

from itertools import cycle
from typing import Any

import httpx

from support.cluster import Cluster
from support.patience import PATIENCE_SECONDS
from support.streams import Answer, ask, assert_same

Bodies = list[dict[str, Any]]

HOUR = 3600.0
# The time that a request may wait (600 s) is less than the skew, and so is the time that a step may
# take (120 s) than the jump.
SKEW = 900.0


async def lost_workers(cluster: Cluster) -> float:
    return await cluster.figure("taco:lost_workers_total")


async def created(cluster: Cluster, gateway: int) -> float:
    """When an answer began, by the gateway's wall clock."""
    body = {"prompt": "x", "max_tokens": 1}
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        reply = await client.post(f"{cluster.url(gateway)}/v1/completions", json=body)
    return float(reply.json()["created"])


async def test_gateways_whose_clocks_differ_from_the_schedulers(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    cluster["gateway-0"].set_wall_clock(-SKEW)
    cluster["gateway-1"].set_wall_clock(SKEW)
    cluster["a"].set_wall_clock(SKEW)
    before = await lost_workers(cluster)
    assert await created(cluster, 1) - await created(cluster, 0) > SKEW  # the clocks are set
    assert_same(await ask(cluster.url(0), bodies), expected)
    assert_same(await ask(cluster.url(1), bodies), expected)
    assert await lost_workers(cluster) == before


async def test_clocks_that_jump_while_requests_run(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    before = await lost_workers(cluster)
    jumps = cycle((HOUR, -HOUR, 0.0))
    async with (
        cluster.streams(bodies[:9]) as streams,
        cluster.streams(bodies[9:], 1) as others,
    ):
        for num_events in (5, 10, 15, 20):
            await streams.reach(num_events)
            await others.reach(num_events)
            offset = next(jumps)
            for process in cluster.processes.values():
                process.set_wall_clock(offset)
        assert_same(await streams.finish(), expected[:9])
        assert_same(await others.finish(), expected[9:])
    assert await lost_workers(cluster) == before
