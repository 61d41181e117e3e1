"""A rank's side of a group in the C++ library, and what happens when an operation fails."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from taco_train.cluster.ranks import Placement
from taco_train.collective import library
from taco_train.collective.connect import Connections
from taco_train.collective.control import Record
from taco_train.collective.errors import CommunicationError
from taco_train.collective.failure_domain import FailureDomain, State
from taco_train.collective.levels import Layout
from taco_train.collective.library import I32, Code, Report


class Handle:
    """Calls the library, turns codes into CommunicationError, and tells other ranks of failures.

    Args:
        placement: of this rank in the group.
        domain: of communicators that fail with this one.
        numbers: of the group's ranks in the domain.
    """

    def __init__(self, placement: Placement, domain: FailureDomain, numbers: Sequence[int]) -> None:
        self.domain = domain
        self.numbers = numbers
        self._placement = placement
        self._library = library.load()
        self._group = ctypes.c_void_p()
        self._lock = threading.Lock()  # of the group's life

    def open(
        self, connections: Connections, layout: Layout, slot_bytes: int, timeout_seconds: float
    ) -> None:
        """Makes the group; it takes over the descriptors."""
        members = list(layout.members)
        arguments = library.CreateArguments(
            rank=self._placement.rank,
            size=self._placement.size,
            sockets=library.int32_array(connections.sockets),
            numbers=library.int32_array(list(self.numbers)),
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
        for schedule in layout.schedules:
            self._library.taco_collective_add_schedule(
                self._group,
                schedule.is_ring,
                len(schedule.groups),
                library.int32_array([len(group.ranks) for group in schedule.groups]),
                library.int32_array([group.num_owners for group in schedule.groups]),
                library.int32_array([rank for group in schedule.groups for rank in group.ranks]),
            )
        self.domain.add(self)

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

    def bind(self, name: str, arguments: ctypes.Structure, memory: object) -> Callable[[], None]:
        """A function that calls as `call` does, for many times: it makes no objects.

        Args:
            arguments: read in each call; they may change between two.
            memory: what owns the memory that the arguments point to.
        """
        report = Report()
        references = ctypes.byref(arguments), ctypes.byref(report)
        function: Callable[..., int] = getattr(self._library, f"taco_collective_{name}")

        def run(_memory: object = memory) -> None:
            if not self._group:
                raise CommunicationError("the communicator is closed")
            code = function(self._group, *references)
            if code:
                raise self._explain(Code(code), report)

        return run

    def abort(self, reason: str) -> None:
        """From any thread: the operation of this rank fails, and later ones; others are not told.

        `FailureDomain.report` tells them.
        """
        with self._lock:
            if self._group:
                self._library.taco_collective_abort(self._group, reason.encode(errors="replace"))

    def name_of(self, rank: int) -> str:
        """ "rank 3", as messages name it."""
        return f"rank {self.numbers[rank]}"

    def fail_mismatch(self, rank: int, message: str) -> NoReturn:
        """Ends the communicator on all ranks: `rank` disagrees with this one."""
        self.domain.report(self.numbers[rank], message)
        raise self.domain.error("messages")

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

    def awaited_rank(self) -> int | None:
        """Whom this rank waits for, as a rank of the domain."""
        rank = self.state().awaited_rank
        return None if rank is None else self.numbers[rank]

    def answer(self) -> Record:
        """What this rank does, for one that waits for it."""
        return self.domain.answer(self.state())

    def close(self) -> None:
        if not self._group:
            return
        self.domain.remove(self)
        with self._lock:
            self._library.taco_collective_destroy(self._group)
            self._group = ctypes.c_void_p()

    def _explain(self, code: Code, report: Report) -> CommunicationError:
        """The error of a failed operation, which all ranks are told of."""
        message = report.message.decode(errors="replace")
        rank = self.numbers[report.rank] if report.rank >= 0 else -1
        stage = self.state().stage
        if code is Code.CLOSED:
            self.domain.wait_for_cause()
        elif code is Code.SILENT:
            rank, message = self.domain.find_silent(rank)
        if code not in (Code.ABORTED, Code.MISMATCH) and rank >= 0:
            message = f"{message}; host {self.domain.host_of(rank)}, stage: {stage}"
        self.domain.report(rank if rank >= 0 else None, message)
        return self.domain.error(stage)
