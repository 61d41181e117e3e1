"""A worker that sleeps for a minute."""

import asyncio
from typing import Any

from support.cluster import Cluster
from support.streams import Answer, ask, assert_same

Bodies = list[dict[str, Any]]
STOPPED_SECONDS = 60.0


async def test_one_is_stopped_for_a_minute(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async with cluster.busy(bodies, "b") as streams:
        cluster["b"].pause()
        minute = asyncio.create_task(asyncio.sleep(STOPPED_SECONDS))
        await cluster.until_workers(1)
        assert_same(await streams.finish(), expected)
    await minute
    async with cluster.streams(bodies) as streams:
        await streams.reach(5)
        cluster["b"].resume()  # with what it had begun, and what had been sent to it
        assert_same(await streams.finish(), expected)
    await cluster.until_workers(2)
    assert_same(await ask(cluster.url(), bodies), expected)
    await cluster.until_idle()
