"""`horovod.run` calls a function in ranks of this host."""

import os
import threading

import pytest

import horovod
from taco_train.lightcc.launcher.rank_group import JobError

pytestmark = pytest.mark.process


def multiply(factor: int, *, fails_on: int = -1) -> int:
    rank = int(os.environ["HOROVOD_RANK"])
    if rank == fails_on:
        raise ValueError(f"rank {rank} fails")
    return rank * factor


def test_values_come_by_rank() -> None:
    values = horovod.run(multiply, (10,), num_proc=2, hosts="localhost:2", use_mpi=False)
    assert values == [0, 10]


def test_an_error_names_the_rank() -> None:
    with pytest.raises(JobError, match="rank 0 on host localhost failed with exit code 1"):
        horovod.run(multiply, (10,), {"fails_on": 0}, np=1)


def test_other_hosts_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"serves this host only, not a\.invalid"):
        horovod.run(multiply, (1,), np=1, hosts="a.invalid:1")


def test_what_cannot_be_pickled_is_one_line() -> None:
    with pytest.raises(TypeError) as failure:
        horovod.run(multiply, (threading.Lock(),))
    assert str(failure.value) == (
        "multiply or its arguments cannot be sent to the ranks: cannot pickle '_thread.lock' "
        "object; make such objects inside the function"
    )


def test_bad_arguments_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"^horovod\.run calls a function, not 'train\.py'"):
        horovod.run("train.py")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="np is 0; it must be at least 1"):
        horovod.run(multiply, (1,), np=0)
    with pytest.raises(ValueError, match="num_proc is 0; it must be at least 1"):
        horovod.run(multiply, (1,), num_proc=0)
    with pytest.raises(ValueError, match="hosts is 'a' and hostfile is 'b': set one of them"):
        horovod.run(multiply, (1,), hosts="a", hostfile="b")
    monkeypatch.setenv("LIGHT_INTRA_SIZE", "all")
    with pytest.raises(ValueError, match="LIGHT_INTRA_SIZE is 'all'; it must be an integer from 1"):
        horovod.run(multiply, (1,))
