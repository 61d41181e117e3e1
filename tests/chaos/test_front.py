"""The scheduler and the gateways die."""

import asyncio
from typing import Any

from support.cluster import Cluster, Process
from support.patience import until
from support.streams import Answer, ask, ask_whole, assert_same

Bodies = list[dict[str, Any]]


async def test_the_scheduler_is_killed(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async with (
        cluster.streams(bodies[:9]) as streams,
        cluster.streams(bodies[9:], 1) as others,
    ):
        await streams.reach(10)
        await others.reach(10)
        cluster["scheduler"].kill()
        cluster["scheduler"].start()
        assert_same(await streams.finish(), expected[:9])
        assert_same(await others.finish(), expected[9:])
    await cluster.until_workers(2)
    await cluster.until_idle()


async def test_the_scheduler_is_killed_while_requests_of_several_sequences_run(
    cluster: Cluster, bodies: Bodies
) -> None:
    streamed = [body | {"n": 3, "max_tokens": 160} for body in bodies[-2:]]
    whole = bodies[-1] | {"n": 2, "best_of": 3, "max_tokens": 160}
    expected = await ask(cluster.url(), streamed)
    expected_whole = await ask_whole(cluster.url(), whole)
    assert [len(answer.siblings) for answer in (*expected, expected_whole)] == [2, 2, 1]

    async def all_run() -> bool:
        return (await cluster.stats()).num_running == 9

    async with cluster.streams(streamed) as streams:
        rest = asyncio.create_task(ask_whole(cluster.url(), whole))
        await until(all_run, "all sequences on workers")
        await streams.reach(10)
        cluster["scheduler"].kill()
        cluster["scheduler"].start()
        assert_same(await streams.finish(), expected)
        assert_same([await rest], [expected_whole])
    await cluster.until_workers(2)
    await cluster.until_idle()


async def test_the_scheduler_gives_way_to_the_next_at_its_address(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async with cluster.streams(bodies[:9], 1) as streams:
        await streams.reach(5)
        with cluster.next_scheduler():
            cluster["scheduler"].terminate()
            await until(lambda: drains(cluster["scheduler"]), "the beginning of its end")
            assert_same(await ask(cluster.url(1), bodies[9:]), expected[9:])
            assert_same(await streams.finish(), expected[:9])
            assert await cluster["scheduler"].ended() == 0


async def drains(process: Process) -> bool:
    return "draining" in process.log


async def test_a_gateway_is_killed(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    endless = [body | {"max_tokens": 900} for body in bodies]

    async def only_the_others_run() -> bool:
        stats = await cluster.stats()
        return stats.num_running + stats.num_waiting <= len(bodies)

    async with (
        cluster.streams(endless) as lost,
        cluster.streams(bodies, 1) as others,
    ):
        await lost.reach(5)
        await others.reach(5)
        cluster["gateway-0"].kill()
        assert all(answer.error for answer in await lost.finish())
        await until(only_the_others_run, "the end of the lost streams")
        assert_same(await others.finish(), expected)
    await cluster.until_idle()
