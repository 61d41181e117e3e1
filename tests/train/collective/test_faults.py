"""What ranks raise when one is killed, stopped, aborts, or calls something else than the others."""

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch

from support.communicators import communicator, own_rank
from support.train_processes import Outcome, RankPool
from taco_train.collective.communicator import Communicator
from taco_train.collective.errors import CommunicationError
from taco_train.collective.wire import TopK

HOSTS = "aabb"
VICTIM = 1
# What the ranks do until one of them fails; the tensor is long enough to be caught in any stage.
LONG = 2_000_000


def errors_of(outcomes: list[Outcome]) -> list[CommunicationError]:
    errors = [outcome.error for outcome in outcomes]
    assert all(isinstance(error, CommunicationError) for error in errors), outcomes
    return [error for error in errors if isinstance(error, CommunicationError)]


def shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "taco_train" in name}


def reduce_until_failure(depth: int, wire_is_sparse: bool) -> None:
    ranks = communicator(HOSTS)
    tensor = torch.ones(LONG)
    while True:
        if wire_is_sparse:
            ranks.all_reduce(tensor.fill_(1.0), wire=TopK("faults"), depth=depth)
        else:
            ranks.all_reduce(tensor.fill_(1.0), depth=depth)


def die_in(stage: str, depth: int, wire_is_sparse: bool) -> None:
    ranks = communicator(HOSTS)

    def watch() -> None:
        while ranks.state().stage != stage:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    reduce_until_failure(depth, wire_is_sparse)


@pytest.mark.parametrize(
    ("stage", "depth", "wire_is_sparse"),
    [
        ("shared memory", 2, False),
        ("exchange between hosts", 2, False),
        ("exchange between hosts", 1, False),
        ("shared memory", 2, True),
        ("exchange between hosts", 2, True),
    ],
)
def test_a_killed_rank_is_named_by_all_others(stage: str, depth: int, wire_is_sparse: bool) -> None:
    before = shared_memory_files()
    others = [rank for rank in range(len(HOSTS)) if rank != VICTIM]
    with RankPool(len(HOSTS)) as pool:
        pool.start(die_in, stage, depth, wire_is_sparse, ranks=[VICTIM])
        pool.start(reduce_until_failure, depth, wire_is_sparse, ranks=others)
        assert pool.finish([VICTIM])[0].exit_code == -signal.SIGKILL
        for error in errors_of(pool.finish(others)):
            assert f"rank {VICTIM} is gone" in str(error)
            assert (error.rank, error.host) == (VICTIM, "a")
            assert "host a, stage: " in str(error)
    assert shared_memory_files() == before


def gather_until_failure() -> None:
    ranks, tensor = communicator("aaaa"), torch.ones(LONG)
    while True:
        ranks.all_gather(tensor)
        ranks.reduce_scatter(tensor)


def die_while_gathering() -> None:
    ranks = communicator("aaaa")

    def watch() -> None:
        while ranks.state().operation < 8 or ranks.state().stage != "shared memory":
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    gather_until_failure()


def test_a_rank_killed_in_a_gather_is_named_by_all_others() -> None:
    others = [rank for rank in range(4) if rank != VICTIM]
    with RankPool(4) as pool:
        pool.start(die_while_gathering, ranks=[VICTIM])
        pool.start(gather_until_failure, ranks=others)
        assert pool.finish([VICTIM])[0].exit_code == -signal.SIGKILL
        for error in errors_of(pool.finish(others)):
            assert f"rank {VICTIM} is gone" in str(error)
            assert (error.rank, error.host) == (VICTIM, "a")


def stop_oneself() -> None:
    communicator(HOSTS, timeout_seconds=1.0)
    os.kill(os.getpid(), signal.SIGSTOP)


def reduce_with_limit(size: int) -> None:
    ranks = communicator(HOSTS, timeout_seconds=1.0)
    ranks.all_reduce(torch.ones(size))


@pytest.mark.parametrize("size", [100, LONG])
def test_a_stopped_rank_is_named_after_the_time_limit(size: int) -> None:
    others = [rank for rank in range(len(HOSTS)) if rank != VICTIM]
    with RankPool(len(HOSTS)) as pool:
        pool.start(stop_oneself, ranks=[VICTIM])
        pool.start(reduce_with_limit, size, ranks=others)
        for error in errors_of(pool.finish(others)):
            assert f"rank {VICTIM} is silent: it does not answer" in str(error)
            assert (error.rank, error.host) == (VICTIM, "a")
        pool.signal(VICTIM, signal.SIGKILL)


def stay_away() -> None:
    communicator(HOSTS, timeout_seconds=1.0, name="busy")


def reduce_without_one() -> None:
    communicator(HOSTS, timeout_seconds=1.0, name="busy").all_reduce(torch.ones(10))


def test_a_rank_that_does_not_call_is_named(pool: RankPool) -> None:
    others = [rank for rank in range(len(HOSTS)) if rank != VICTIM]
    pool.start(stay_away, ranks=[VICTIM])
    pool.start(reduce_without_one, ranks=others)
    assert pool.finish([VICTIM])[0].is_good
    for error in errors_of(pool.finish(others)):
        assert f"rank {VICTIM} is silent: it has not called this operation (it is idle" in str(
            error
        )


def call(name: str, which: str) -> None:
    ranks = communicator(HOSTS, name=name)
    calls: dict[str, Callable[[], object]] = {
        "10 float32": lambda: ranks.all_reduce(torch.ones(10)),
        "12 float32": lambda: ranks.all_reduce(torch.ones(12)),
        "10 float64": lambda: ranks.all_reduce(torch.ones(10, dtype=torch.float64)),
        "10 float32, max": lambda: ranks.all_reduce(torch.ones(10), "max"),
        "0 float32": lambda: ranks.all_reduce(torch.ones(0)),
        "300000 float32": lambda: ranks.all_reduce(torch.ones(300_000)),
        "barrier": ranks.barrier,
        "broadcast": lambda: ranks.broadcast(torch.ones(10), 0),
        "root 2": lambda: ranks.broadcast(torch.ones(10), 2),
        "all_gather": lambda: ranks.all_gather(torch.ones(10)),
        "rows have": lambda: ranks.all_gather(torch.ones(2, 3)),
        "reduce_scatter": lambda: ranks.reduce_scatter(torch.ones(12)),
    }
    calls[which]()


@pytest.mark.parametrize(
    ("others", "odd"),
    [
        ("10 float32", "12 float32"),
        ("10 float32", "10 float64"),
        ("10 float32", "10 float32, max"),
        ("10 float32", "0 float32"),
        ("300000 float32", "10 float32"),
        ("10 float32", "300000 float32"),
        ("10 float32", "barrier"),
        ("300000 float32", "broadcast"),
        ("broadcast", "root 2"),
        ("all_gather", "broadcast"),
        ("all_gather", "rows have"),
        ("all_gather", "reduce_scatter"),
    ],
)
@pytest.mark.parametrize("odd_rank", [0, 3])
def test_ranks_that_call_different_operations_all_raise(
    pool: RankPool, others: str, odd: str, odd_rank: int
) -> None:
    name = f"{others}/{odd}/{odd_rank}"
    rest = [rank for rank in range(len(HOSTS)) if rank != odd_rank]
    pool.start(call, name, odd, ranks=[odd_rank])
    pool.start(call, name, others, ranks=rest)
    for error in errors_of(pool.finish(range(len(HOSTS)))):
        assert "ranks disagree: " in str(error)
        if " float" not in odd or " float" not in others:
            assert odd in str(error) or others in str(error)
        else:
            assert odd in str(error)
            assert others in str(error)


def wait_for_subgroup(last: str) -> None:
    """Ranks 1 and 3 compute together before all do; rank 3 ends or stops in their collective."""
    ranks = communicator(HOSTS, name=last, timeout_seconds=2.0)
    if own_rank() in (1, 3):
        if own_rank() == 3 and last == "making":
            os.kill(os.getpid(), signal.SIGKILL)
        group = ranks.subgroup([1, 3], "pair")
        assert group is not None
        group.barrier()
        if own_rank() == 3:
            os.kill(os.getpid(), signal.SIGSTOP if last == "stopped" else signal.SIGKILL)
        group.all_reduce(torch.ones(LONG))
    ranks.barrier()


@pytest.mark.parametrize("last", ["making", "killed", "stopped"])
def test_a_rank_that_is_lost_in_a_subgroup_is_named_by_all_others(last: str) -> None:
    with RankPool(len(HOSTS)) as pool:
        pool.start(wait_for_subgroup, last)
        for error in errors_of(pool.finish([0, 1, 2])):
            assert f"rank 3 is {'silent' if last == 'stopped' else 'gone'}" in str(error)
            assert (error.rank, error.host) == (3, "b")
        if last == "stopped":
            pool.signal(3, signal.SIGKILL)


def wait_and_abort() -> None:
    ranks = communicator(HOSTS, name="abort")
    threading.Timer(0.0, ranks.abort, ["the test ends it"]).start()
    ranks.all_reduce(torch.ones(10))


def abort_with(reason: str) -> None:
    communicator(HOSTS, name="named").abort(reason)
    communicator(HOSTS, name="named").barrier()


def wait_in(name: str) -> None:
    communicator(HOSTS, name=name).all_reduce(torch.ones(10))


def call_again() -> None:
    communicator(HOSTS, name="abort").barrier()


def open_only() -> None:
    communicator(HOSTS, name="abort")


def test_abort_wakes_all_ranks(pool: RankPool) -> None:
    everyone, waiting = range(len(HOSTS)), [0, 1, 2]
    pool.run(open_only, ranks=everyone)
    pool.start(wait_in, "abort", ranks=waiting[:2])  # ranks 2 and 3 never come
    pool.start(wait_and_abort, ranks=[2])
    for error in errors_of(pool.finish(waiting)):
        assert str(error) == "rank 2: the test ends it"
    for error in errors_of(pool.outcomes(call_again, ranks=everyone)):
        assert str(error) == "rank 2: the test ends it"


def test_a_reason_that_is_not_text_ends_all_ranks(pool: RankPool) -> None:
    """Messages of the system may have names of files with any bytes."""
    pool.start(wait_in, "named", ranks=[0, 1, 3])
    pool.start(abort_with, "no \udcff here", ranks=[2])
    for error in errors_of(pool.finish([0, 1, 3])):
        assert str(error) == "rank 2: no ? here"
    errors_of(pool.finish([2]))


def close_in_turn() -> None:
    """A rank may close while the others still copy the result."""
    if own_rank() < 4:
        for index in range(20):
            ranks: Communicator = communicator(HOSTS, name=f"closed {index}")
            ranks.all_reduce(torch.ones(100_000), depth=1 + index % 2)
            ranks.close()
        with pytest.raises(CommunicationError, match="the communicator is closed"):
            ranks.barrier()


def test_ranks_close_without_waiting_for_each_other(pool: RankPool) -> None:
    pool.run(close_in_turn)
