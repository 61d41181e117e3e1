"""Start and end of a job, and what a process can ask about it."""

from __future__ import annotations

import atexit
from collections.abc import Sequence

import torch

from taco_train.lightcc.horovod.elastic.membership import is_elastic, join_round
from taco_train.lightcc.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    forget_process_sets,
)
from taco_train.lightcc.horovod.state import current, is_initialized, set_current, take_current
from taco_train.lightcc.job import open_job
from taco_train.lightcc.settings import start_settings


def init(comm: object = None, process_sets: str | Sequence[ProcessSet] | None = None) -> None:
    """Join the other processes of the job; a second call does nothing.

    Args:
        comm: None, or the list of all ranks; communicators of mpi4py are not supported.
        process_sets: sets to register at once; "dynamic" and None register none, and later ones
            are possible in any case.

    Raises:
        VariableError: a variable of the environment has a value that it cannot have.
        RendezvousError: the launcher's variables are wrong, or a rank did not come.
        ValueError: `comm` or `process_sets` is not supported.
        HorovodInternalError: the ranks' process sets differ, or have other ranks than the job.
    """
    if is_initialized():
        return
    sets = _listed(process_sets)
    settings = start_settings()
    if is_elastic() and (comm is not None or sets):
        raise ValueError("elastic jobs have no comm and no process_sets: ranks change")
    job = join_round(settings) if is_elastic() else open_job(settings)
    if comm is not None and comm != list(range(job.placement.size)):
        job.close()
        raise ValueError(
            f"comm is {comm!r}; only None and the list of all ranks are supported: pass "
            "process_sets for parts of the ranks"
        )
    set_current(job)
    try:
        for process_set in sets:
            add_process_set(process_set)
    except BaseException:
        shutdown()
        raise


@atexit.register
def shutdown() -> None:
    """Leave the job; collectives that other ranks still wait for fail there."""
    job = take_current()
    if job is not None:
        job.close()
        forget_process_sets()


def _listed(process_sets: str | Sequence[ProcessSet] | None) -> Sequence[ProcessSet]:
    """The sets to register at once."""
    if process_sets is None or process_sets == "dynamic":
        return ()
    if isinstance(process_sets, list | tuple):
        found = [one for one in process_sets if isinstance(one, ProcessSet)]
        if len(found) == len(process_sets):
            return found
    raise ValueError(
        f'process_sets is {process_sets!r}; it must be "dynamic" or a list of hvd.ProcessSet'
    )


def size() -> int:
    """Number of ranks."""
    return current().placement.size


def rank() -> int:
    """Number of this process among all ranks."""
    return current().placement.rank


def local_size() -> int:
    """Number of ranks on this host."""
    return current().placement.local_size


def local_rank() -> int:
    """Number of this process among the ranks of its host."""
    return current().placement.local_rank


def cross_size() -> int:
    """Number of hosts that have a rank with this local rank."""
    return current().placement.cross_size


def cross_rank() -> int:
    """Number of this host among the hosts that have a rank with this local rank."""
    return current().placement.cross_rank


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    hosts = current().placement.hosts
    return len({hosts.count(host) for host in hosts}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record every collective in a file of Chrome's trace format, from now on."""
    current().timeline.start(file_path, marks_cycles=mark_cycles)


def stop_timeline() -> None:
    """End the recording, and complete the file."""
    current().timeline.stop()


def mpi_threads_supported() -> bool:
    """Whether other libraries may use MPI from other threads: LightCC does not use MPI."""
    return True


def mpi_enabled() -> bool:
    """Whether MPI computes: it can only start the ranks."""
    return False


def mpi_built() -> bool:
    """Whether MPI can compute."""
    return False


def gloo_enabled() -> bool:
    """Whether ranks negotiate over TCP, as Horovod's Gloo controller does."""
    return True


def gloo_built() -> bool:
    """Whether CPU tensors are supported without MPI."""
    return True


def nccl_built() -> int:
    """Version of NCCL as Horovod encodes it; 0: torch has none."""
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()
    return int(major) * 10_000 + int(minor) * 100 + int(patch)


def cuda_built() -> bool:
    """Whether torch has CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Whether torch has ROCm."""
    return torch.version.hip is not None


def ddl_built() -> bool:
    """IBM's DDL is not supported."""
    return False


def ccl_built() -> bool:
    """Intel's oneCCL is not supported."""
    return False
