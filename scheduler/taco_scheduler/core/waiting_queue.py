"""The sequences that wait for a slot and blocks, and the deadlines until which they may."""

import heapq
import itertools
from collections.abc import Iterable, Iterator

from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.state.sequence import Request, Sequence, Status, Urgency

MIN_SWEEP = 64  # entries; sweeping at twice what was left makes it cost nothing on average


class WaitingQueue:
    """Waiting sequences by priority, then by what their tenants have had, then by arrival.

    Sequences of one tenant and priority stand in a lane. A heap holds the lanes by the counter that
    their tenant had when it was last looked at: counters only grow, so that what stands on top
    either is the least or goes down to its place. A pop takes O(log lanes + log lane), on average.

    A sequence that ends or goes elsewhere stays in its lane until a sweep or its turn; it no longer
    counts. Each push has its own number, and only the latest one of a sequence is valid.

    Attributes:
        fair_share: what each tenant has had.
        num_sequences: how many wait.
        num_tokens: what they are expected to compute before they decode.
        num_pushed: times that one came or was put back.
    """

    def __init__(self, fair_share: FairShare) -> None:
        self.num_sequences = 0
        self.num_tokens = 0
        self.num_pushed = 0
        self.fair_share = fair_share
        self._lanes: dict[tuple[int, Share], _TenantQueue] = {}
        self._heap: list[tuple[LaneKey, int, _TenantQueue]] = []
        self._places = itertools.count(1)
        self._numbers = itertools.count(1)
        self._num_entries = 0
        self._sweep_at = MIN_SWEEP

    @property
    def has_several_tenants(self) -> bool:
        """More than one tenant has requests, here or elsewhere."""
        return self.fair_share.has_several_tenants

    def push(self, sequence: Sequence, num_tokens: int | None = None) -> None:
        """`num_tokens` are expected to be computed; None: all that it has."""
        sequence.num_queued_tokens = len(sequence.tokens) if num_tokens is None else num_tokens
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """After `pop`: it keeps its turn."""
        sequence.status = Status.WAITING
        sequence.queue, sequence.queue_number = self, next(self._numbers)
        self._count(sequence, 1)
        lane = self._lane_of(sequence)
        entry = (sequence.urgency, sequence.queue_number, sequence)
        heapq.heappush(lane.sequences, entry)
        if lane.sequences[0] is entry:  # it may stand further in front now
            self._place(lane)
        self.num_pushed += 1
        self._num_entries += 1
        if self._num_entries > self._sweep_at:
            self._sweep()

    def peek(self) -> Sequence | None:
        """Who is next; None if nobody waits."""
        while self._heap:
            key, place, lane = self._heap[0]
            if place != lane.place:  # its entry stands somewhere else
                heapq.heappop(self._heap)
                continue
            self._drop_ended(lane)
            if not lane.sequences:
                heapq.heappop(self._heap)
                del self._lanes[lane.priority, lane.share]
                continue
            if (current := lane.key()) == key:
                return lane.sequences[0][2]
            heapq.heapreplace(self._heap, (current, place, lane))
        return None

    def pop(self) -> Sequence | None:
        """Takes off who is next."""
        sequence = self.peek()
        if sequence is not None:
            heapq.heappop(self._heap[0][2].sequences)
            self._num_entries -= 1
            self.forget(sequence)
        return sequence

    def forget(self, sequence: Sequence) -> None:
        """It ends while it waits, or goes elsewhere."""
        self._count(sequence, -1)
        sequence.queue = None

    def remove(self, requests: Iterable[Request]) -> None:
        """Takes off all sequences of some requests."""
        for request in requests:
            for sequence in request.unfinished:
                if sequence.queue is self:
                    self.forget(sequence)

    def first(self, count: int) -> list[Sequence]:
        """Those who are next, about in their order: that changes with what their tenants get.

        It takes them off and puts them back: O(count * log(lane)), however many others wait.
        """
        taken = list(itertools.islice(iter(self.pop, None), count))
        for sequence in taken:
            self.put_back(sequence)
        return taken

    def _count(self, sequence: Sequence, sign: int) -> None:
        self.num_sequences += sign
        self.num_tokens += sign * sequence.num_queued_tokens

    def _lane_of(self, sequence: Sequence) -> "_TenantQueue":
        request = sequence.request
        name = (request.priority, request.share)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _TenantQueue(*name)
        return lane

    def _place(self, lane: "_TenantQueue") -> None:
        lane.place = next(self._places)
        heapq.heappush(self._heap, (lane.key(), lane.place, lane))
        if len(self._heap) > max(MIN_SWEEP, 2 * len(self._lanes)):
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.sequences}
            self._heap = [(lane.key(), lane.place, lane) for lane in self._lanes.values()]
            heapq.heapify(self._heap)

    def _drop_ended(self, lane: "_TenantQueue") -> None:
        while lane.sequences and not self._is_valid(lane.sequences[0]):
            heapq.heappop(lane.sequences)
            self._num_entries -= 1

    def _is_valid(self, entry: "_Entry") -> bool:
        _, number, sequence = entry
        is_latest = sequence.queue is self and sequence.queue_number == number
        return is_latest and sequence.status is Status.WAITING

    def _sweep(self) -> None:
        for lane in self._lanes.values():
            lane.sequences = [entry for entry in lane.sequences if self._is_valid(entry)]
            heapq.heapify(lane.sequences)
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.sequences}
        self._heap.clear()
        for lane in self._lanes.values():
            self._place(lane)
        self._num_entries = sum(len(lane.sequences) for lane in self._lanes.values())
        self._sweep_at = max(MIN_SWEEP, 2 * self._num_entries)


# Priority, the tenant's counter, the first sequence's arrival and index.
LaneKey = tuple[int, float, int, int]
# Of one push: the urgency of the sequence, the number of the push, the sequence.
_Entry = tuple[Urgency, int, Sequence]


class _TenantQueue:
    """The waiting sequences of one tenant and priority.

    Attributes:
        sequences: a heap.
        place: number of the one entry in the queue's heap that counts.
    """

    __slots__ = ("place", "priority", "sequences", "share")

    def __init__(self, priority: int, share: Share) -> None:
        self.priority = priority
        self.share = share
        self.sequences: list[_Entry] = []
        self.place = 0

    def key(self) -> LaneKey:
        _, arrival, index = self.sequences[0][0]
        return (self.priority, self.share.counter, arrival, index)


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
        """The earliest deadline of a request that still waits, in seconds of the engine's clock."""
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
