"""What ranks raise when one is killed or stopped, at each stage. See also test_cut_link."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import Outcome, RankPool
from taco_train.collective.communicator import Communicator
from taco_train.lightcc.horovod.state import current

pytestmark = pytest.mark.process
HOSTS = ["a", "a", "b", "b"]
VICTIM = 1
# Long enough that a rank can be caught in any stage.
LONG = 2_000_000
SHARED_MEMORY, BETWEEN_HOSTS = "shared memory", "exchange between hosts"


@contextmanager
def running_ranks(**variables: str) -> Iterator[RankPool]:
    with RankPool(len(HOSTS), hosts=HOSTS, environment=variables) as pool:
        pool.run(hvd.init)
        yield pool


def all_but(rank: int) -> list[int]:
    return [one for one in range(len(HOSTS)) if one != rank]


def messages_of(outcomes: list[Outcome]) -> list[str]:
    assert all(isinstance(one.error, hvd.HorovodInternalError) for one in outcomes), outcomes
    return [str(one.error) for one in outcomes]


def left_after_shutdown() -> list[str]:
    """Shared memory and threads of a job that has ended."""
    hvd.shutdown()
    # realpath: the descriptor of the listing itself is closed by now.
    files = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    threads = [one.name for one in threading.enumerate()]
    return [
        *(one for one in [*files, *mapped] if "memfd:taco_train" in one),
        *(one for one in os.listdir("/dev/shm") if "taco_train" in one),
        *(name for name in threads if name.startswith(("lightcc", "taco_train"))),
    ]


HANDLES: list[int] = []


def submit() -> None:
    HANDLES.append(hvd.allreduce_async(torch.ones(10), name="waits"))


def synchronize() -> None:
    hvd.synchronize(HANDLES.pop())


def reduce_again() -> None:
    hvd.allreduce(torch.ones(10), name="later")


@pytest.mark.parametrize("victim", [VICTIM, 0])
def test_a_rank_that_is_killed_while_others_negotiate(victim: int) -> None:
    others = all_but(victim)
    with running_ranks() as pool:
        pool.run(submit, ranks=others)
        pool.signal(victim, signal.SIGKILL)
        for message in messages_of(pool.outcomes(synchronize, ranks=others)):
            assert f"rank {victim} is gone" in message
        for message in messages_of(pool.outcomes(reduce_again, ranks=others)):
            assert f"rank {victim} is gone" in message
        assert pool.run(left_after_shutdown, ranks=others) == [[]] * len(others)


def reduce_until_failure() -> None:
    tensor = torch.ones(LONG)
    while True:
        hvd.allreduce_(tensor.fill_(1.0), name="long", op=hvd.Sum)


def reduce_and_signal(stage: str, number: signal.Signals) -> None:
    """Signals this process once it is in a stage."""

    def watch() -> None:
        while current().communicator.state().stage != stage:
            pass
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
    reduce_until_failure()


@pytest.mark.parametrize("top_k", ["0", "1"])
@pytest.mark.parametrize("stage", [SHARED_MEMORY, BETWEEN_HOSTS])
def test_a_rank_that_is_killed_in_a_collective(stage: str, top_k: str) -> None:
    others = all_but(VICTIM)
    with running_ranks(LIGHT_TOPK_ALLREDUCE=top_k) as pool:
        pool.start(reduce_and_signal, stage, signal.SIGKILL, ranks=[VICTIM])
        pool.start(reduce_until_failure, ranks=others)
        assert pool.finish([VICTIM])[0].exit_code == -signal.SIGKILL
        for message in messages_of(pool.finish(others)):
            assert f"rank {VICTIM} is gone" in message
        assert pool.run(left_after_shutdown, ranks=others) == [[]] * len(others)


def die_in(method: str) -> None:
    setattr(Communicator, method, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    reduce_until_failure()


# Only the measurement of costs calls these methods.
@pytest.mark.parametrize(
    ("victim", "method"), [(0, "sum_inside"), (3, "sum_inside"), (VICTIM, "exchange")]
)
def test_a_rank_that_is_killed_while_costs_are_measured(victim: int, method: str) -> None:
    others = all_but(victim)
    with running_ranks() as pool:
        pool.start(die_in, method, ranks=[victim])
        pool.start(reduce_until_failure, ranks=others)
        assert pool.finish([victim])[0].exit_code == -signal.SIGKILL
        for message in messages_of(pool.finish(others)):
            assert f"rank {victim} is gone" in message
        assert pool.run(left_after_shutdown, ranks=others) == [[]] * len(others)


def reduce_pairs(num_passes: int) -> None:
    """Until the planner has its buckets: both tensors are one."""
    for _ in range(num_passes):
        for handle in submit_pair():
            hvd.synchronize(handle)


def submit_pair() -> list[int]:
    return [hvd.allreduce_async(torch.ones(50_000), name=name) for name in ("first", "last")]


def submit_and_die() -> None:
    """Ends once the first tensor of the bucket is ready on all ranks."""
    hvd.allreduce_async(torch.ones(50_000), name="first")
    while current().engine._link._has_unsent():  # type: ignore[attr-defined]
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def reduce_pairs_until_failure() -> None:
    while True:
        reduce_pairs(1)


def test_a_rank_that_is_killed_while_a_bucket_waits_for_its_last_tensor() -> None:
    others = all_but(VICTIM)
    with running_ranks() as pool:
        pool.run(reduce_pairs, 6)
        pool.start(submit_and_die, ranks=[VICTIM])
        pool.start(reduce_pairs_until_failure, ranks=others)
        for message in messages_of(pool.finish(others)):
            assert f"rank {VICTIM} is gone" in message


def fail_in_a_collective() -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory for a bucket")

    setattr(current().reducer, "all_reduce", fail)  # noqa: B010 - mypy
    reduce_until_failure()


def test_a_rank_that_fails_in_a_collective() -> None:
    with running_ranks() as pool:
        pool.start(fail_in_a_collective, ranks=[VICTIM])
        pool.start(reduce_until_failure, ranks=all_but(VICTIM))
        own, *others = messages_of(pool.finish([VICTIM, *all_but(VICTIM)]))
        assert own == "no memory for a bucket"
        for message in others:
            assert f"rank {VICTIM}" in message
            assert message.endswith(own)


def stop_and_submit() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    hvd.allreduce(torch.ones(10), name="waits")


def test_a_rank_that_is_stopped_for_longer_than_the_stall_limit() -> None:
    others = all_but(VICTIM)
    with running_ranks(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1") as pool:
        pool.start(stop_and_submit, ranks=[VICTIM])
        pool.run(submit, ranks=others)
        for message in messages_of(pool.outcomes(synchronize, ranks=others)):
            assert message.endswith(
                f"some ranks have not submitted it for 1 seconds; missing ranks: {VICTIM}"
            )
        pool.signal(VICTIM, signal.SIGCONT)
        (message,) = messages_of(pool.finish([VICTIM]))
        assert "some ranks have not submitted it" in message


def test_rank_0_is_stopped_for_longer_than_the_stall_limit() -> None:
    others = all_but(0)
    with running_ranks(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1") as pool:
        pool.start(stop_and_submit, ranks=[0])
        for message in messages_of(pool.outcomes(reduce_again, ranks=others)):
            assert message.endswith("nothing came from rank 0 for 1 seconds")
        pool.signal(0, signal.SIGCONT)
        messages_of(pool.finish([0]))


@pytest.mark.parametrize("stage", [SHARED_MEMORY, BETWEEN_HOSTS])
def test_a_rank_that_is_stopped_in_a_collective(stage: str) -> None:
    others = all_but(VICTIM)
    # The stall limit counts where the signal comes just after the collective.
    stall_limit = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4"}
    with running_ranks(HOROVOD_GLOO_TIMEOUT_SECONDS="4", **stall_limit) as pool:
        pool.start(reduce_and_signal, stage, signal.SIGSTOP, ranks=[VICTIM])
        pool.start(reduce_until_failure, ranks=others)
        for message in messages_of(pool.finish(others)):
            is_silent = f"rank {VICTIM} is silent: it does not answer" in message
            assert is_silent or message.endswith(f"missing ranks: {VICTIM}")
        assert pool.run(left_after_shutdown, ranks=others) == [[]] * len(others)
        pool.signal(VICTIM, signal.SIGCONT)
        messages_of(pool.finish([VICTIM]))  # it does not compute on with what it has
        assert pool.run(left_after_shutdown, ranks=[VICTIM]) == [[]]
