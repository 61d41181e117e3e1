"""Links that are cut, refuse, lose one direction, or are slow."""

from collections.abc import Callable
from typing import Any

import pytest

from support.cluster import Cluster
from support.link import Link
from support.patience import until
from support.streams import Answer, ask, assert_same

Bodies = list[dict[str, Any]]


def lose_what_it_says(link: Link) -> None:
    link.drops_up = True


def lose_what_it_is_told(link: Link) -> None:
    link.drops_down = True


@pytest.mark.parametrize(
    "cut",
    [Link.drop, Link.reject, lose_what_it_says, lose_what_it_is_told],
    ids=lambda f: f.__name__,
)
async def test_a_workers_link_is_cut(
    cluster: Cluster, bodies: Bodies, expected: list[Answer], cut: Callable[[Link], None]
) -> None:
    async with cluster.busy(bodies, "b") as streams:
        cut(cluster.worker_link)
        await cluster.until_workers(1)
        assert_same(await streams.finish(), expected)
    cluster.worker_link.heal()
    await cluster.until_workers(2)
    await cluster.until_idle()


async def test_a_gateways_link_is_cut(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    async def has_none() -> bool:
        stats = await cluster.stats()
        return stats.num_running + stats.num_waiting == 0

    long_body = bodies[0] | {"max_tokens": 900}  # its end is far away when the link breaks
    async with cluster.streams(bodies, 1) as streams, cluster.streams([long_body], 1) as long:
        await streams.reach(10)
        await long.reach(10)
        cluster.gateway_link.drop()
        await until(has_none, "the end of the gateway's requests")
        assert long.answers[0].finish_reason is None
        cluster.gateway_link.heal()
        assert_same(await streams.finish(), expected)
    await cluster.until_idle()


async def test_slow_links_lose_nothing(
    cluster: Cluster, bodies: Bodies, expected: list[Answer]
) -> None:
    cluster.worker_link.delay = cluster.gateway_link.delay = 0.2
    answers = await ask(cluster.url(1), [body | {"max_tokens": 12} for body in bodies])
    for answer, other in zip(answers, expected, strict=True):
        assert answer.error == ""
        assert answer.token_ids == other.token_ids[:12]
    assert await cluster.num_workers() == 2
    await cluster.until_idle()
