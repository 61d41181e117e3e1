"""One cluster for all faults: what a test has broken is mended before the next one."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster import SCALED, Cluster, running_cluster
from support.streams import Answer, ask

NUM_GREEDY = 16
MAX_TOKENS = 96


@pytest.fixture(scope="session")
def bodies() -> list[dict[str, Any]]:
    """Requests of different lengths, some with a common prefix; the last two are sampled."""
    bodies = []
    for number in range(NUM_GREEDY + 2):
        prompt = f"{'How do I read a file? ' * (number % 5)}What does json.dumps do, {number}?"
        bodies.append(
            {
                "prompt": prompt,
                "max_tokens": MAX_TOKENS,
                "temperature": 0 if number < NUM_GREEDY else 0.8,
                "seed": number,
                "ignore_eos": True,
                "logprobs": 0,
                "return_tokens_as_token_ids": True,
                "stream": True,
            }
        )
    return bodies


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), SCALED) as cluster:
        yield cluster


@pytest.fixture
async def cluster(shared_cluster: Cluster) -> Cluster:
    await shared_cluster.heal()
    return shared_cluster


_EXPECTED: list[Answer] = []


@pytest.fixture
async def expected(cluster: Cluster, bodies: list[dict[str, Any]]) -> list[Answer]:
    """The answers when nothing breaks; computed once."""
    if not _EXPECTED:
        _EXPECTED.extend(await ask(cluster.url(), bodies))
    return _EXPECTED
