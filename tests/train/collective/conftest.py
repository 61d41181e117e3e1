from collections.abc import Iterator

import pytest

from support.train_processes import RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(8) as ranks:
        yield ranks
