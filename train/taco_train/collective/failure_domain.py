"""Communicators that fail together: that of all ranks, and its subgroups."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from taco_train.cluster.ranks import Placement
from taco_train.collective.control import Endpoint, Message, Record, ask, tell
from taco_train.collective.errors import CommunicationError

# How long a rank that lost a connection waits to hear of a failure that explains it.
_GRACE_SECONDS = 0.3


@dataclass(frozen=True)
class State:
    """What a rank does in a communicator.

    Attributes:
        operation: number of the last operation that it has begun; the first is 1.
        awaited_rank: whom it waits for, if anyone.
        stage: `idle`, `shared memory`, `exchange between hosts`, `messages`.
    """

    operation: int
    awaited_rank: int | None
    stage: str


class Member(Protocol):
    """This rank in one of the communicators."""

    def abort(self, reason: str) -> None:
        """The operation in progress and all later ones raise."""
        ...

    def awaited_rank(self) -> int | None:
        """Whom this rank waits for in an operation, as a rank of the domain."""
        ...


class FailureDomain:
    """What a rank knows of failures in a communicator and its subgroups.

    A rank that fails in one of them comes to no later operation of another, where ranks would wait
    for it without knowing why: all ranks of all of them get the same error. Ranks have the numbers
    of the largest communicator, in which each subgroup's are.

    Args:
        placement: of this rank in the largest communicator.

    Attributes:
        failure: the first one that this rank has heard of.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._endpoints: Sequence[Endpoint] = []
        self._lock = threading.Lock()
        self._members: list[Member] = []
        self._heard = threading.Event()
        self.failure: Record | None = None

    def open(self, endpoints: Sequence[Endpoint]) -> None:
        """Failures are told to these ranks from now on."""
        self._endpoints = endpoints

    def add(self, member: Member) -> None:
        """A communicator can be used; it is aborted where a failure is known."""
        with self._lock:
            self._members.append(member)
            failure = self.failure
        if failure is not None:
            member.abort(failure.text)

    def remove(self, member: Member) -> None:
        """A communicator is about to be closed."""
        with self._lock:
            self._members.remove(member)

    def hear(self, record: Record) -> bool:
        """Records a failure; returns whether it is the first."""
        with self._lock:
            if self.failure is not None:
                return False
            self.failure = record
            for member in self._members:
                member.abort(record.text)
        self._heard.set()
        return True

    def report(self, rank: int | None, text: str) -> None:
        """This rank has found a failure, about which all others are told if it is the first.

        Args:
            rank: that is gone, silent or disagrees.
        """
        own = self._placement.rank
        record = Record(Message.FAILURE, own, -1 if rank is None else rank, text=text)
        if self.hear(record):
            others = [other for other in range(len(self._endpoints)) if other != own]
            tell([(self._endpoints[other], self._is_local(other)) for other in others], record)

    def wait_for_cause(self) -> None:
        """A connection has closed: a rank that failed tells the others before it closes its own."""
        self._heard.wait(_GRACE_SECONDS)

    def error(self, stage: str) -> CommunicationError:
        """The first failure, as an error of this rank in a stage."""
        assert self.failure is not None
        rank = self.failure.rank if self.failure.rank >= 0 else None
        host = None if rank is None else self.host_of(rank)
        return CommunicationError(self.failure.text, rank=rank, host=host, stage=stage)

    def answer(self, state: State) -> Record:
        """For a rank that waits for this one.

        Args:
            state: in the largest communicator.
        """
        with self._lock:
            awaited = [member.awaited_rank() for member in self._members]
        rank = next((one for one in awaited if one is not None), -1)
        own = self._placement.rank
        return Record(Message.QUESTION, own, rank, state.operation, state.stage)

    def find_silent(self, rank: int) -> tuple[int, str]:
        """Follows who waits for whom to the rank that all wait for in the end, and says of it why.

        Args:
            rank: whom this one waits for; -1: it is not known.
        """
        own = self._placement.rank
        asked: set[int] = set()
        while rank >= 0 and rank not in asked and rank != own:
            asked.add(rank)
            answer = ask(self._endpoints[rank], self._is_local(rank), own)
            if answer is None:
                return rank, f"rank {rank} is silent: it does not answer"
            if answer.rank < 0:
                return rank, (
                    f"rank {rank} is silent: it has not called this operation (it is "
                    f"{answer.text or 'busy'} after operation {answer.operation})"
                )
            rank = answer.rank
        which = f"rank {rank}" if rank >= 0 else "any rank"
        return rank, f"nothing came from {which} within the time limit, nor to it"

    def host_of(self, rank: int) -> str:
        return self._placement.hosts[rank]

    def _is_local(self, rank: int) -> bool:
        return self.host_of(rank) == self._placement.host
