"""Workers that die, hang and are replaced: a pause in the streams, and nothing else."""

import asyncio
import itertools
from typing import Any

import httpx

from support.cluster import Cluster
from support.fragile_worker import MARK
from support.patience import until
from support.streams import Answer, ask, assert_same

Bodies = list[dict[str, Any]]
LONG = {"max_tokens": 900}  # its end is far away when something breaks


async def test_one_of_two_is_killed(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async with cluster.busy(bodies, "a") as streams:
        cluster["a"].kill()
        assert_same(await streams.finish(), expected)
    await cluster.until_idle()


async def test_the_only_one_is_killed_and_replaced(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    cluster["b"].kill()
    await cluster.until_workers(1)
    async with cluster.streams(bodies) as streams, cluster.streams([bodies[0] | LONG]) as long:
        await streams.reach(10)
        await long.reach(10)
        cluster["a"].kill()
        await cluster.until_workers(0)
        assert long.answers[0].finish_reason is None
        cluster["b"].start()
        assert_same(await streams.finish(), expected)
    await cluster.until_idle()


async def test_one_is_stopped_and_comes_back_from_the_dead(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async with cluster.busy(bodies, "b") as streams:
        cluster["b"].pause()
        # No other worker can continue its sequences: they still lack tokens when it wakes.
        cluster["a"].pause()
        await cluster.until_workers(0)
        cluster["b"].resume()
        await cluster.until_workers(1)
        cluster["a"].resume()
        assert_same(await streams.finish(), expected)
    await cluster.until_workers(2)
    assert_same(await ask(cluster.url(), bodies), expected)
    await cluster.until_idle()


async def test_a_request_that_kills_workers_is_given_up(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async with cluster.streams(bodies) as streams, httpx.AsyncClient(timeout=None) as client:
        await streams.reach(10)
        deadly = {"prompt": MARK, "max_tokens": 5}
        refused = asyncio.create_task(client.post(f"{cluster.url()}/v1/completions", json=deadly))
        for name in ("a", "b"):
            assert await cluster[name].ended() < 0
        response = await refused
        assert response.status_code == 500
        assert "failed again and again" in response.json()["error"]["message"]
        cluster["a"].start()
        assert_same(await streams.finish(), expected)
        assert cluster["a"].runs
    await cluster.until_idle()


async def test_all_are_replaced_one_after_the_other_under_load(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    is_rolled = asyncio.Event()
    numbers = itertools.count()

    async def client() -> int:
        num_answers = 0
        for count in numbers:
            if is_rolled.is_set() and count >= cluster.pace.num_rolled_requests:
                break
            number = count % len(bodies)
            async with cluster.streams([bodies[number] | {"max_tokens": 24}]) as streams:
                (answer,) = await streams.finish()
            assert answer.error == ""
            assert answer.token_ids == expected[number].token_ids[:24]
            num_answers += 1
        return num_answers

    async def roll() -> None:
        for old, new in (("a", "c"), ("b", "d")):
            cluster.add_worker(new)
            await cluster.until_workers(3)
            cluster[old].terminate()
            assert await cluster[old].ended() == 0
            del cluster.processes[old]
        is_rolled.set()

    try:
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(client()) for _ in range(16)]
            group.create_task(roll())
        assert all(task.result() > 0 for task in clients)
        await cluster.until_idle()
    finally:
        cluster.restore_workers()


async def test_a_draft_worker_is_killed(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    drafter = cluster.add_drafter()

    async def has_drafted() -> bool:
        await ask(cluster.url(), bodies[:2])
        return await cluster.figure("vllm:spec_decode_num_draft_tokens_total") > 0

    try:
        await until_log(cluster, "draft worker drafter attached")
        await until(has_drafted, "the first drafts")
        async with cluster.streams(bodies) as streams:
            await streams.reach(10)
            drafter.kill()
            assert_same(await streams.finish(), expected)
    finally:
        cluster.remove("drafter")
    await cluster.until_idle()


async def until_log(cluster: Cluster, words: str) -> None:
    async def is_there() -> bool:
        return words in cluster["scheduler"].log

    await until(is_there, f"'{words}' in the log")
