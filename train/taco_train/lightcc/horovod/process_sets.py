"""Process sets: subsets of the ranks that run collectives among themselves."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from taco_train.lightcc.horovod.state import current
from taco_train.lightcc.negotiation.requests import Kind, Request


class ProcessSet:
    """Some ranks.

    Args:
        ranks_or_comm: the ranks, in any order; communicators of mpi4py are not supported.

    Attributes:
        process_set_id: None until the set is registered, by `hvd.init` or `add_process_set`.
        ranks: ascending.

    Raises:
        TypeError: these are no integers.
        ValueError: the list is empty, or a rank is negative.
    """

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        self.process_set_id: int | None = None
        try:
            ranks = sorted({int(operator.index(one)) for one in ranks_or_comm})
        except TypeError:
            raise TypeError(
                f"the ranks of a process set are {ranks_or_comm!r}; they must be integers: [0, 2]"
            ) from None
        if not ranks or ranks[0] < 0:
            raise ValueError(
                f"the ranks of a process set are {ranks}; there must be one or more, from 0 on"
            )
        self.ranks: list[int] | None = ranks

    def size(self) -> int | None:
        """Number of its ranks; None: it is not registered."""
        return None if self.process_set_id is None else len(self._members())

    def rank(self) -> int | None:
        """This process's number in the set; None: it is not in the set.

        Raises:
            ValueError: the process is not in the set.
        """
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {current().placement.rank} is not in {self}")
        return self._members().index(current().placement.rank)

    def included(self) -> bool | None:
        """Whether this process is in the set; None: the set is not registered."""
        if self.process_set_id is None:
            return None
        return current().placement.rank in self._members()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return (self.process_set_id, self.ranks) == (other.process_set_id, other.ranks)

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__

    def _members(self) -> list[int]:
        if self.ranks is None:
            return list(range(current().placement.size))
        return self.ranks


class _GlobalProcessSet(ProcessSet):
    """All ranks."""

    def __init__(self) -> None:
        self.process_set_id = 0
        self.ranks = None

    def size(self) -> int:
        return current().placement.size


global_process_set = _GlobalProcessSet()
_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a set; every rank calls it, with the same ranks.

    Raises:
        HorovodInternalError: the ranks differ, exist as a set, or are not ranks of this job.
        ValueError: the set is registered.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already")
    request = Request(Kind.ADD_GROUP, "add_process_set", ranks=tuple(process_set.ranks or ()))
    engine = current().engine
    process_set.process_set_id = engine.wait(engine.submit(request))
    _registered.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a registered set; every rank calls it.

    Returns:
        Whether there was something to remove: not of the set of all ranks.

    Raises:
        TypeError: it is no ProcessSet.
    """
    _check_type(process_set)
    if not process_set.process_set_id:
        return False
    request = Request(Kind.REMOVE_GROUP, "remove_process_set", root=process_set.process_set_id)
    engine = current().engine
    engine.wait(engine.submit(request))
    process_set.process_set_id = None
    _registered[:] = [one for one in _registered if one is not process_set]
    return True


def forget_process_sets() -> None:
    """The job has ended, and with it the registration of its sets."""
    while _registered:
        _registered.pop().process_set_id = None


def group_of(process_set: ProcessSet) -> int:
    """The number of a set that this process is in.

    Raises:
        TypeError: it is no ProcessSet.
        ValueError: it is not registered, or without this process.
    """
    check_registered(process_set)
    if not process_set.included():
        raise ValueError(f"rank {current().placement.rank} is not in {process_set}")
    assert process_set.process_set_id is not None
    return process_set.process_set_id


def check_registered(process_set: ProcessSet) -> None:
    """Raises TypeError or ValueError where this is no registered process set."""
    _check_type(process_set)
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered: pass it to hvd.add_process_set first")


def _check_type(process_set: ProcessSet) -> None:
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"process_set is {process_set!r}; it must be what hvd.add_process_set returned"
        )
