"""The sequences that wait for a slot and blocks, and the deadlines until which they may."""

import heapq
import itertools
from collections.abc import Iterator

from taco_scheduler.sequence import Request, Sequence, Status, Urgency


class WaitingQueue:
    """Waiting sequences by urgency.

    A sequence that was cancelled stays in the heap and is passed over: whoever ends one only sets
    its status.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        heapq.heappush(self._heap, (sequence.urgency, sequence))

    def peek(self) -> Sequence | None:
        """The most urgent sequence; None if nobody waits."""
        while self._heap and self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence | None:
        """Takes the most urgent sequence off."""
        sequence = self.peek()
        if sequence is not None:
            heapq.heappop(self._heap)
        return sequence


class Deadlines:
    """Requests by the time until which they may wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._count = itertools.count()  # so that requests are never compared

    def push(self, request: Request) -> None:
        if request.deadline is not None:
            heapq.heappush(self._heap, (request.deadline, next(self._count), request))

    def next(self) -> float | None:
        """Time of the first deadline that still matters, in seconds since the epoch."""
        while self._heap and not _waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_passed(self, now: float) -> Iterator[Request]:
        """Takes off the requests that have waited too long."""
        while (deadline := self.next()) is not None and deadline <= now:
            yield heapq.heappop(self._heap)[2]


def _waits(request: Request) -> bool:
    return bool(request.unfinished) and not request.is_running
