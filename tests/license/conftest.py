"""License services over both ledgers, with clocks that tests control."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.ledgers import Harness, LocalHarness, RedisHarness
from support.licenses import Clock, make_service
from support.redis_server import RedisServer
from taco_license.ledger.sqlite_store import Store
from taco_license.server.service import LicenseService


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        yield store


@pytest.fixture
def service(store: Store, clock: Clock) -> LicenseService:
    """The store of a single server."""
    return make_service(store, clock)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis server, shared by the tests that do not stop it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    made = (
        LocalHarness(tmp_path / "data")
        if request.param == "sqlite"
        else RedisHarness(request.getfixturevalue("redis"))
    )
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def shared(redis: RedisServer) -> AsyncIterator[RedisHarness]:
    made = RedisHarness(redis)
    await made.open()
    yield made
    await made.close()
