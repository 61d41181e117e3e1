"""A rank's side of a group in the C++ library, and what happens when an operation fails."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from taco_train.cluster.ranks import Placement
from taco_train.collective import library
from taco_train.collective.connect import Connections
from taco_train.collective.control import Endpoint, Message, Record, ask, tell
from taco_train.collective.errors import CommunicationError
from taco_train.collective.levels import Layout
from taco_train.collective.library import I32, Code, Report

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


class Handle:
    """Calls the library, turns codes into CommunicationError, and tells other ranks of failures."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._library = library.load()
        self._group = ctypes.c_void_p()
        self._endpoints: list[Endpoint] = []
        self._lock = threading.Lock()  # of the attributes below, and of `_group`'s life
        self._failure: Record | None = None
        self._heard = threading.Event()

    def open(
        self, connections: Connections, layout: Layout, slot_bytes: int, timeout_seconds: float
    ) -> None:
        """Makes the group; it takes over the descriptors."""
        members = list(layout.members)
        arguments = library.CreateArguments(
            rank=self._placement.rank,
            size=self._placement.size,
            sockets=library.int32_array(connections.sockets),
            num_local_ranks=len(members),
            local_index=members.index(self._placement.rank),
            local_ranks=library.int32_array(members),
            bells=library.int32_array(connections.bells),
            memory=connections.memory,
            slot_bytes=slot_bytes,
            timeout_milliseconds=int(timeout_seconds * 1000),
        )
        report = Report()
        code = self._library.taco_collective_create(
            ctypes.byref(arguments), ctypes.byref(self._group), ctypes.byref(report)
        )
        if code != Code.OK:
            raise CommunicationError(report.message.decode(), stage="connecting")
        self._endpoints = connections.endpoints
        for schedule in layout.schedules:
            self._library.taco_collective_add_schedule(
                self._group,
                schedule.is_ring,
                len(schedule.groups),
                library.int32_array([len(group.ranks) for group in schedule.groups]),
                library.int32_array([group.num_owners for group in schedule.groups]),
                library.int32_array([rank for group in schedule.groups for rank in group.ranks]),
            )
        if (failure := self._failure) is not None:  # heard of meanwhile
            self._abort_group(failure)

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that takes the group and a report.

        Raises:
            CommunicationError: the operation failed, or an earlier one has.
        """
        if not self._group:
            raise CommunicationError("the communicator is closed")
        report = Report()
        function: Callable[..., int] = getattr(self._library, f"taco_collective_{name}")
        code = function(self._group, *arguments, ctypes.byref(report))
        if code != Code.OK:
            raise self._explain(Code(code), report)

    def abort(self, reason: str) -> None:
        """From any thread: this rank's operation fails, and those of all others."""
        record = Record(Message.FAILURE, self._placement.rank, self._placement.rank, text=reason)
        if self.hear(record):
            self._tell(record)

    def fail_mismatch(self, rank: int, message: str) -> NoReturn:
        """Ends the communicator on all ranks: `rank` disagrees with this one."""
        record = Record(Message.FAILURE, self._placement.rank, rank, text=message)
        if self.hear(record):
            self._tell(record)
        assert self._failure is not None
        raise self._error(self._failure, "messages")

    def hear(self, record: Record) -> bool:
        """Records a failure; returns whether it is the first."""
        with self._lock:
            if self._failure is not None:
                return False
            self._failure = record
            if self._group:
                self._abort_group(record)
        self._heard.set()
        return True

    def state(self) -> State:
        """From any thread: what this rank does."""
        with self._lock:
            if not self._group:
                return State(0, None, "starting or closed")
            operation, awaited = ctypes.c_uint64(), I32()
            stage = ctypes.c_char_p()
            self._library.taco_collective_state(
                self._group, ctypes.byref(operation), ctypes.byref(awaited), ctypes.byref(stage)
            )
        rank = awaited.value if awaited.value >= 0 else None
        return State(operation.value, rank, (stage.value or b"").decode())

    def answer(self) -> Record:
        """The same, for a rank that waits for this one."""
        state = self.state()
        awaited = -1 if state.awaited_rank is None else state.awaited_rank
        return Record(Message.QUESTION, self._placement.rank, awaited, state.operation, state.stage)

    def close(self) -> None:
        with self._lock:
            if self._group:
                self._library.taco_collective_destroy(self._group)
                self._group = ctypes.c_void_p()

    def _abort_group(self, record: Record) -> None:
        self._library.taco_collective_abort(self._group, record.rank, record.text.encode())

    def _explain(self, code: Code, report: Report) -> CommunicationError:
        """The error of a failed operation, which all ranks are told of."""
        rank, message = report.rank, report.message.decode(errors="replace")
        stage = self.state().stage
        if code is Code.CLOSED:
            # A rank that failed tells the others before it closes its connections.
            self._heard.wait(_GRACE_SECONDS)
        elif code is Code.SILENT:
            rank, message = self._find_silent(rank, message)
        if code not in (Code.ABORTED, Code.MISMATCH) and rank >= 0:
            message = f"{message}; host {self._placement.hosts[rank]}, stage: {stage}"
        record = Record(Message.FAILURE, self._placement.rank, rank, text=message)
        if self.hear(record):
            self._tell(record)
        assert self._failure is not None
        return self._error(self._failure, stage)

    def _error(self, record: Record, stage: str) -> CommunicationError:
        rank = record.rank if record.rank >= 0 else None
        host = None if rank is None else self._placement.hosts[rank]
        return CommunicationError(record.text, rank=rank, host=host, stage=stage)

    def _find_silent(self, rank: int, message: str) -> tuple[int, str]:
        """Follows who waits for whom to the rank that all wait for in the end."""
        asked: set[int] = set()
        while rank >= 0 and rank not in asked and rank != self._placement.rank:
            asked.add(rank)
            answer = ask(self._endpoints[rank], self._is_local(rank), self._placement.rank)
            message = f"rank {rank} is silent"
            if answer is None:
                return rank, f"{message}: it does not answer"
            if answer.rank < 0:
                return rank, (
                    f"{message}: it has not called this operation (it is {answer.text or 'busy'} "
                    f"after operation {answer.operation})"
                )
            rank = answer.rank
        return rank, f"nothing came from rank {rank} within the time limit, nor to it"

    def _is_local(self, rank: int) -> bool:
        return self._placement.hosts[rank] == self._placement.host

    def _tell(self, record: Record) -> None:
        others: Sequence[int] = [
            rank for rank in range(len(self._endpoints)) if rank != self._placement.rank
        ]
        tell([(self._endpoints[rank], self._is_local(rank)) for rank in others], record)
