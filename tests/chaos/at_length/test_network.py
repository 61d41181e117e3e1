"""A real network between a worker and all others, whose router loses packets or rejects them."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from support.network import Network
from support.network_cluster import NetworkCluster, running_network_cluster
from support.streams import Answer, assert_same

Bodies = list[dict[str, Any]]


@pytest.fixture(scope="module")
def shared_network_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NetworkCluster]:
    with running_network_cluster(tmp_path_factory.mktemp("network")) as cluster:
        yield cluster


@pytest.fixture
async def network_cluster(
    shared_network_cluster: NetworkCluster,
    stalls: dict[str, list[float]],
    request: pytest.FixtureRequest,
) -> AsyncIterator[NetworkCluster]:
    await shared_network_cluster.until_workers(2)
    shared_network_cluster.answers.clear()
    yield shared_network_cluster
    stalls[request.node.name] = [answer.stall for answer in shared_network_cluster.answers]


@pytest.mark.parametrize(
    "treat",
    [
        Network.drop,
        Network.reject,
        Network.lose_what_far_says,
        Network.lose_what_far_is_told,
    ],
    ids=lambda f: f.__name__,
)
async def test_a_router_cuts_a_worker_off(
    network_cluster: NetworkCluster,
    bodies: Bodies,
    expected: list[Answer],
    treat: Callable[[Network], None],
) -> None:
    async with network_cluster.busy(bodies, "b") as streams:
        treat(network_cluster.network)
        await network_cluster.until_workers(1)
        assert_same(await streams.finish(), expected)
    network_cluster.network.heal()
    await network_cluster.until_workers(2)
