"""One cluster for all faults: what a test has broken is mended before the next one.

With `--stalls FILE` the time constants are the product's own, and the longest pause of each stream
is written to that file, by test (`bench/chaos.py`).
"""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import REAL, SCALED, Cluster, running_cluster
from support.streams import Answer, ask

NUM_GREEDY = 16
MAX_TOKENS = 64


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stalls", metavar="FILE", help="Real time constants; write pauses to FILE.")


@pytest.fixture(scope="session")
def stalls(request: pytest.FixtureRequest) -> Iterator[dict[str, list[float]]]:
    """Of each test the longest pause of each stream, in seconds."""
    stalls: dict[str, list[float]] = {}
    yield stalls
    if (path := request.config.getoption("stalls", None)) is not None:
        Path(path).write_text(json.dumps(stalls))


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
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    pace = SCALED if request.config.getoption("stalls", None) is None else REAL
    with running_cluster(tmp_path_factory.mktemp("cluster"), pace) as cluster:
        yield cluster


@pytest.fixture
async def cluster(
    shared_cluster: Cluster, stalls: dict[str, list[float]], request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    await shared_cluster.heal()
    shared_cluster.answers.clear()
    yield shared_cluster
    whole = [answer for answer in shared_cluster.answers if not answer.error]
    stalls[request.node.name] = [answer.stall for answer in whole]


_EXPECTED: list[Answer] = []


@pytest.fixture
async def expected(cluster: Cluster, bodies: list[dict[str, Any]]) -> list[Answer]:
    """The answers when nothing breaks; computed once."""
    if not _EXPECTED:
        _EXPECTED.extend(await ask(cluster.url(), bodies))
    return _EXPECTED
