"""A service with a store of its own, and clocks in the test's hands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.licenses import Clock, make_service
from taco_license.service import LicenseService
from taco_license.store import Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        yield store


@pytest.fixture
def service(store: Store, clock: Clock) -> LicenseService:
    return make_service(store, clock)
