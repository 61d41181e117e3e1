"""The tests' own pool of ranks: values, errors, deaths and hangs are told apart."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from support.train_processes import RankPool

pytestmark = pytest.mark.process


def rank_and_host(factor: int) -> tuple[int, str]:
    return int(os.environ["RANK"]) * factor, os.environ["TACO_TRAIN_HOST"]


def fail_on(rank: int) -> int:
    if int(os.environ["RANK"]) == rank:
        raise LookupError(f"rank {rank} has no such key")
    return rank


def wait_forever() -> None:
    threading.Event().wait()


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(3, hosts=["a", "a", "b"]) as ranks:
        yield ranks


def test_values_come_in_the_order_of_ranks(pool: RankPool) -> None:
    assert pool.run(rank_and_host, 10) == [(0, "a"), (10, "a"), (20, "b")]
    assert pool.run(rank_and_host, 1, ranks=[2, 0]) == [(2, "b"), (0, "a")]


def test_an_error_keeps_its_type_and_fails_run(pool: RankPool) -> None:
    outcomes = pool.outcomes(fail_on, 1)
    assert [outcome.value for outcome in outcomes] == [1, None, 1]
    assert isinstance(outcomes[1].error, LookupError)
    with pytest.raises(AssertionError, match=r"rank 1: (.|\n)*LookupError: rank 1 has no such key"):
        pool.run(fail_on, 1)


def test_a_killed_rank_gives_its_exit_code() -> None:
    with RankPool(2) as pool:
        pool.run(rank_and_host, 1)
        pool.start(wait_forever)
        pool.signal(0, signal.SIGKILL)
        assert pool.finish([0])[0].exit_code == -signal.SIGKILL
        assert pool.outcomes(rank_and_host, 1, ranks=[0])[0].exit_code == -signal.SIGKILL
        with pytest.raises(AssertionError, match=r"busy after 0.5 s: rank 1:(.|\n)*wait_forever"):
            pool.finish([1], timeout=0.5)
