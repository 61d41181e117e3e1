"""The job that `hvd.init` has joined, of this process."""

from __future__ import annotations

import itertools
from typing import Any

from taco_train.lightcc.horovod.exceptions import NotInitializedError
from taco_train.lightcc.job import Job

_jobs: list[Job] = []
_numbers: dict[tuple[str, int], itertools.count[int]] = {}
# Works by handle (torch/handles.py); these hold tensors.
pending: dict[int, Any] = {}


def current() -> Job:
    """The process's job.

    Raises:
        NotInitializedError: `hvd.init` was not called.
    """
    if not _jobs:
        raise NotInitializedError
    return _jobs[0]


def is_initialized() -> bool:
    return bool(_jobs)


def set_current(job: Job) -> None:
    _jobs[:] = [job]
    _numbers.clear()


def take_current() -> Job | None:
    """The process's job, which it leaves with all handles; None: it has not joined one."""
    pending.clear()
    return _jobs.pop() if _jobs else None


def next_number(kind: str, group: int) -> int:
    """How many unnamed collectives of this kind a process set had: equal on its ranks."""
    return next(_numbers.setdefault((kind, group), itertools.count(1)))
