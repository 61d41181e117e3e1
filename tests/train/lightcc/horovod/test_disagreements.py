"""Ranks that submit different things all raise, naming ranks and what each sent, and continue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool

pytestmark = pytest.mark.process
SIZE = 3
WAITS = "every rank waits, and not for the same names; missing ranks: "


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(SIZE, hosts=["a", "a", "b"]) as pool:
        pool.run(hvd.init)
        yield pool


CASES: dict[str, Callable[[int], object]] = {
    "names": lambda rank: hvd.allreduce(torch.ones(2), name=f"of {rank}"),
    "kinds": lambda rank: (hvd.allgather if rank else hvd.allreduce)(torch.ones(2), name="x"),
    "factor": lambda rank: hvd.allreduce(torch.ones(2), name="x", prescale_factor=1.0 + rank),
    "dimensions": lambda rank: hvd.allgather(torch.ones((2,) * (1 + rank // 2)), name="x"),
    "rows": lambda rank: hvd.alltoall(torch.ones(3, 1 + rank // 2), name="x"),
    "scattered": lambda rank: hvd.reducescatter(torch.ones(3 + rank), name="x"),
    "one of a group": lambda rank: hvd.grouped_allreduce(
        [torch.ones(2), torch.ones(2 + rank // 2)], name="x"
    ),
    "size of a group": lambda rank: hvd.grouped_allreduce(
        [torch.ones(2)] * (2 + rank // 2), name="x"
    ),
    "root": lambda rank: hvd.broadcast_(torch.ones(2), root_rank=rank, name="x"),
    "process set": lambda rank: hvd.add_process_set([0, 1] if rank else [0, 2]),
}
EXPECTED: dict[str, list[str]] = {
    "names": [f"allreduce.of {rank}: {WAITS}" for rank in range(SIZE)],
    "kinds": [f"allreduce.x: {WAITS}1, 2", *[f"allgather.x: {WAITS}0"] * 2],
    "factor": ["ranks differ in prescale: 1.0 on rank 0; 2.0 on rank 1; 3.0 on rank 2"] * SIZE,
    "dimensions": ["ranks differ in shape: [2] on ranks 0, 1; [2, 2] on rank 2"] * SIZE,
    "rows": ["ranks differ in shape: [3, 1] on ranks 0, 1; [3, 2] on rank 2"] * SIZE,
    "scattered": ["ranks differ in shape: [3] on rank 0; [4] on rank 1; [5] on rank 2"] * SIZE,
    "one of a group": ["x.1: ranks differ in shape: [2] on ranks 0, 1; [3] on rank 2"] * SIZE,
    "size of a group": ["ranks differ in num_together: 2 on ranks 0, 1; 3 on rank 2"] * SIZE,
    "root": ["ranks differ in root: 0 on rank 0; 1 on rank 1; 2 on rank 2"] * SIZE,
    "process set": ["ranks differ in ranks: [0, 2] on rank 0; [0, 1] on ranks 1, 2"] * SIZE,
}


@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_told_what_each_sent(ranks: RankPool, case: str) -> None:
    for _ in range(2):  # the names may be used again
        for found, expected in zip(ranks.run(disagree, case), EXPECTED[case], strict=True):
            assert expected in found


def disagree(case: str) -> str:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        CASES[case](hvd.rank())
    total: Any = hvd.allreduce(torch.ones(1), name="after", op=hvd.Sum)
    assert total.item() == SIZE
    return str(caught.value)


def init_with_log() -> tuple[int, list[str]]:
    """The number of ranks, and what `init` logs for users."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    hvd.init()
    return hvd.size(), lines


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("LIGHT_TOPK_RATIO", "2", "a number above 0, 1 at most"),
        ("LIGHT_INTRA_SIZE", "all", "an integer from 1"),
    ],
)
def test_a_bad_variable_is_named_by_init(variable: str, value: str, allowed: str) -> None:
    with RankPool(2, environment={variable: value}) as pool:
        for outcome in pool.outcomes(hvd.init):
            assert isinstance(outcome.error, ValueError)
            assert str(outcome.error) == f"{variable} is {value!r}; it must be {allowed}"


def test_a_variable_of_mpi_is_accepted_with_one_line() -> None:
    with RankPool(2, environment={"HOROVOD_MPI_THREADS_DISABLE": "1"}) as pool:
        for size, lines in pool.run(init_with_log):
            assert size == 2
            found = [line for line in lines if "MPI_THREADS" in line]
            assert found == ["HOROVOD_MPI_THREADS_DISABLE has no effect: MPI only starts the ranks"]
