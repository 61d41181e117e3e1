"""One cluster for all faults: what a test has broken is mended before the next one.

With `--stalls FILE` the time constants are the product's own, and the longest pause of each stream
is written to that file, by test (`bench/services/chaos.py`).
"""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster import REAL, SCALED, Cluster, Pace, running_cluster
from support.streams import Answer, ask

NUM_GREEDY = 16


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stalls", metavar="FILE", help="Real time constants; write pauses to FILE.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What takes minutes, or rights that not every machine gives, runs with `make chaos` alone."""
    if collection_path.name == "at_length" and config.getoption("stalls", None) is None:
        return True
    return None


@pytest.fixture(scope="session")
def stalls(request: pytest.FixtureRequest) -> Iterator[dict[str, list[float]]]:
    """Of each test the longest pause of each stream, in seconds."""
    stalls: dict[str, list[float]] = {}
    yield stalls
    if (path := request.config.getoption("stalls", None)) is not None:
        Path(path).write_text(json.dumps(stalls))


@pytest.fixture(scope="session")
def pace(request: pytest.FixtureRequest) -> Pace:
    return SCALED if request.config.getoption("stalls", None) is None else REAL


@pytest.fixture(scope="session")
def bodies(pace: Pace) -> list[dict[str, Any]]:
    """Requests of different lengths, some with a common prefix; the last two are sampled."""
    bodies = []
    for number in range(NUM_GREEDY + 2):
        prompt = f"{'How do I read a file? ' * (number % 5)}What does json.dumps do, {number}?"
        bodies.append(
            {
                "prompt": prompt,
                "max_tokens": pace.num_tokens,
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
def shared_cluster(pace: Pace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
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
