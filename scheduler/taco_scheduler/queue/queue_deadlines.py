"""Queue deadlines: when waiting requests expire. The request registry fails them with 504.

A request has `queue_timeout` seconds to get a slot. Its deadline does not count once it has run,
and counts again while no worker can run it.
"""

import heapq
import itertools
from collections.abc import Iterator

from taco_scheduler.state.sequence import Request

MIN_SWEEP = 64  # entries; a sweep at twice the remaining entries costs O(1) on average


class QueueDeadlines:
    """Waiting requests by their deadlines. Entries of requests that run are swept."""

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
        """The earliest deadline of a waiting request, in seconds of the engine's clock."""
        while self._heap and not _waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_passed(self, now: float) -> Iterator[Request]:
        """Remove and yield the requests whose deadline has passed."""
        while (deadline := self.next()) is not None and deadline <= now:
            yield heapq.heappop(self._heap)[2]


def _waits(request: Request) -> bool:
    # `admitted` and not "runs": a preempted request is in the middle of its answer.
    return bool(request.unfinished) and not request.admitted
