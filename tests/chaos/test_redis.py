"""Redis, through which gateways find schedulers, is killed, flushed, slow or cut off; and one of
two schedulers goes.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.cluster import Pace
from support.redis_cluster import NUMBERS, RedisCluster, running_redis_cluster
from support.streams import Answer, ask, assert_same

SLOW_SECONDS = 0.5

Bodies = list[dict[str, Any]]


@pytest.fixture(scope="module")
def requests_to_all(bodies: Bodies) -> Bodies:
    return bodies[:12]


@pytest.fixture(scope="module")
def shared_redis_cluster(
    pace: Pace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisCluster]:
    with running_redis_cluster(tmp_path_factory.mktemp("redis-cluster"), pace) as cluster:
        yield cluster


@pytest.fixture
async def redis_cluster(
    shared_redis_cluster: RedisCluster,
    stalls: dict[str, list[float]],
    request: pytest.FixtureRequest,
) -> AsyncIterator[RedisCluster]:
    await shared_redis_cluster.heal()
    shared_redis_cluster.answers.clear()
    yield shared_redis_cluster
    whole = [answer for answer in shared_redis_cluster.answers if not answer.error]
    stalls[request.node.name] = [answer.stall for answer in whole]


_UNDISTURBED: list[Answer] = []


@pytest.fixture
async def undisturbed(redis_cluster: RedisCluster, requests_to_all: Bodies) -> list[Answer]:
    """The answers when nothing breaks; computed once."""
    if not _UNDISTURBED:
        _UNDISTURBED.extend(await ask(redis_cluster.url(), requests_to_all))
    return _UNDISTURBED


@pytest.mark.parametrize("fault", ["killed", "flushed", "slow", "cut off"])
async def test_redis_is(
    redis_cluster: RedisCluster,
    requests_to_all: Bodies,
    undisturbed: list[Answer],
    fault: str,
) -> None:
    async with redis_cluster.streams(requests_to_all[:6]) as streams:
        await streams.reach(5)
        match fault:
            case "killed":
                redis_cluster.redis.kill()
            case "flushed":
                redis_cluster.redis.run("FLUSHALL")
            case "slow":
                redis_cluster.redis_link.delay = SLOW_SECONDS
            case "cut off":
                redis_cluster.redis_link.drop()
        if fault != "flushed":
            await redis_cluster.until_gateways_trust_redis(trusted=False)
        assert_same(await ask(redis_cluster.url(1), requests_to_all[6:]), undisturbed[6:])
        assert_same(await streams.finish(), undisturbed[:6])
    if fault == "killed":
        redis_cluster.redis.start()
    redis_cluster.redis_link.heal()
    await redis_cluster.until_gateways_trust_redis()
    for number in NUMBERS:
        await redis_cluster.until_registered(number)
        await redis_cluster.until_workers(number, 2)


async def test_a_scheduler_of_two_is_told_to_stop(
    redis_cluster: RedisCluster, requests_to_all: Bodies, undisturbed: list[Answer]
) -> None:
    async with redis_cluster.streams(requests_to_all[:6]) as streams:
        await streams.reach(5)
        redis_cluster["scheduler-1"].terminate()
        assert_same(await ask(redis_cluster.url(1), requests_to_all[6:]), undisturbed[6:])
        assert_same(await streams.finish(), undisturbed[:6])
    assert await redis_cluster["scheduler-1"].ended() == 0


async def test_a_scheduler_of_two_is_killed(
    redis_cluster: RedisCluster, requests_to_all: Bodies, undisturbed: list[Answer]
) -> None:
    async with (
        redis_cluster.streams(requests_to_all[:6]) as streams,
        redis_cluster.streams(requests_to_all[6:], 1) as others,
    ):
        await streams.reach(5)
        await others.reach(5)
        running = [(await redis_cluster.stats(number)).num_running for number in NUMBERS]
        assert max(running) > 0
        redis_cluster[f"scheduler-{running.index(max(running))}"].kill()
        assert_same(await streams.finish(), undisturbed[:6])
        assert_same(await others.finish(), undisturbed[6:])
