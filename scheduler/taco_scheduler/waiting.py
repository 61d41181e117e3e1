"""The sequences that wait for a slot and blocks, and the deadlines until which they may."""

import heapq
import itertools
from collections.abc import Iterator

from taco_scheduler.sequence import Request, Sequence, Status, Urgency

MIN_SWEEP = 64  # entries; sweeping at twice what was left makes it cost nothing on average


class WaitingQueue:
    """Waiting sequences by urgency.

    Whoever ends one only sets its status: it stays in the heap until a sweep or its turn.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Urgency, Sequence]] = []
        self._sweep_at = MIN_SWEEP

    def push(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        heapq.heappush(self._heap, (sequence.urgency, sequence))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)
            self._sweep_at = max(MIN_SWEEP, 2 * len(self._heap))

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
    """Requests by the time until which they may wait. Those that have been admitted are swept."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._count = itertools.count()  # so that requests are never compared
        self._sweep_at = MIN_SWEEP

    def push(self, request: Request) -> None:
        if request.deadline is None:
            return
        heapq.heappush(self._heap, (request.deadline, next(self._count), request))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if _waits(entry[2])]
            heapq.heapify(self._heap)
            self._sweep_at = max(MIN_SWEEP, 2 * len(self._heap))

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
    # Not "runs": between two of its sequences, or preempted, it is in the middle of its answer.
    return bool(request.unfinished) and not request.admitted
