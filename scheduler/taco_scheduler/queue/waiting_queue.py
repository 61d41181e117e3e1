"""Waiting queue: sequences that wait for a slot and blocks."""

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.queue.gate import Gate
from taco_scheduler.state.sequence import Request, Sequence, Status, Urgency

MIN_SWEEP = 64  # entries; a sweep at twice the remaining entries costs O(1) on average


class WaitingQueue:
    """One replica's waiting sequences, by priority, then by tenant counter, then by arrival.

    Sequences of one tenant and priority form a tenant queue. A heap orders these queues by their
    tenants' counters as last read. Counters only grow, so the top of the heap is either the least
    or moves down. A pop takes O(log tenant queues + log sequences of one) on average.

    A sequence that ends or moves away keeps its entry until a sweep or its turn, but does not
    count. Each push has its own number, and only the latest push of a sequence is valid.

    Sequences that wait for something other than a slot and blocks are set aside. They count, but
    the queue passes them over without a pop and a push each.

    Attributes:
        fair_share: the token counter of each tenant.
        num_sequences: waiting sequences.
        num_tokens: tokens that they are expected to compute before they decode.
        num_pushed: pushes so far, including sequences that were put or brought back.
    """

    def __init__(self, fair_share: FairShare) -> None:
        self.num_sequences = 0
        self.num_tokens = 0
        self.num_pushed = 0
        self.fair_share = fair_share
        self._tenant_queues: dict[tuple[int, Share], _TenantQueue] = {}
        self._heap: list[tuple[TenantQueueKey, int, _TenantQueue]] = []
        self._aside: dict[Gate, _Aside] = {}
        self._places = itertools.count(1)
        self._numbers = itertools.count(1)
        self._num_entries = 0
        self._sweep_at = MIN_SWEEP

    @property
    def has_several_tenants(self) -> bool:
        """Whether more than one tenant has requests, here or on other replicas."""
        return self.fair_share.has_several_tenants

    def push(self, sequence: Sequence, num_tokens: int | None = None) -> None:
        """Queue a sequence.

        Args:
            num_tokens: tokens that it is expected to compute; None: all its tokens.
        """
        sequence.num_queued_tokens = len(sequence.tokens) if num_tokens is None else num_tokens
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Queue a sequence again after `pop`: it keeps its turn."""
        self._push(self._enter(sequence))

    def set_aside(self, sequence: Sequence, gate: Gate) -> None:
        """Queue a sequence again after `pop`; it is not the next one while the gate holds it."""
        aside = self._aside.get(gate)
        if aside is None:
            aside = self._aside[gate] = _Aside(gate.generation)
        aside.entries.append(self._enter(sequence))
        self._note_entry()

    def bring_back(self) -> None:
        """Let the sequences that were set aside, and are not held any more, take their turns."""
        for gate, aside in self._aside.items():
            generation = gate.generation
            if not aside.entries or generation == aside.generation:
                continue
            entries, aside.entries, aside.generation = aside.entries, [], generation
            self._num_entries -= len(entries)
            for entry in entries:
                if not self._is_valid(entry):
                    continue
                if gate.must_wait(entry[2]):
                    aside.entries.append(entry)
                    self._note_entry()
                else:
                    self._push(entry)

    def peek(self) -> Sequence | None:
        """The next sequence; None if none waits, or all are set aside."""
        while self._heap:
            key, place, tenant_queue = self._heap[0]
            if place != tenant_queue.place:  # a newer entry is valid
                heapq.heappop(self._heap)
                continue
            self._drop_ended(tenant_queue)
            if not tenant_queue.sequences:
                heapq.heappop(self._heap)
                del self._tenant_queues[tenant_queue.priority, tenant_queue.share]
                continue
            if (current := tenant_queue.key()) == key:
                return tenant_queue.sequences[0][2]
            heapq.heapreplace(self._heap, (current, place, tenant_queue))
        return None

    def pop(self) -> Sequence | None:
        """Remove and return the next sequence."""
        sequence = self.peek()
        if sequence is not None:
            heapq.heappop(self._heap[0][2].sequences)
            self._num_entries -= 1
            self.forget(sequence)
        return sequence

    def forget(self, sequence: Sequence) -> None:
        """Remove a sequence that ended or moves to another replica."""
        self._count(sequence, -1)
        sequence.queue = None

    def remove(self, requests: Iterable[Request]) -> None:
        """Remove all sequences of some requests."""
        for request in requests:
            for sequence in request.unfinished:
                if sequence.queue is self:
                    self.forget(sequence)

    def first(self, count: int) -> list[Sequence]:
        """The next sequences, about in their order, which changes with the tenants' counters.

        Those that are set aside come last. Pops and pushes each of the others: the cost does not
        depend on how many more wait.
        """
        taken = list(itertools.islice(iter(self.pop, None), count))
        for sequence in taken:
            self.put_back(sequence)
        aside = itertools.chain.from_iterable(aside.entries for aside in self._aside.values())
        valid = (entry[2] for entry in aside if self._is_valid(entry))
        return taken + list(itertools.islice(valid, count - len(taken)))

    def _enter(self, sequence: Sequence) -> "_Entry":
        sequence.status = Status.WAITING
        sequence.queue, sequence.queue_number = self, next(self._numbers)
        self._count(sequence, 1)
        return (sequence.urgency, sequence.queue_number, sequence)

    def _push(self, entry: "_Entry") -> None:
        tenant_queue = self._tenant_queue_of(entry[2])
        heapq.heappush(tenant_queue.sequences, entry)
        if tenant_queue.sequences[0] is entry:  # the tenant queue may move up
            self._place(tenant_queue)
        self.num_pushed += 1
        self._note_entry()

    def _note_entry(self) -> None:
        self._num_entries += 1
        if self._num_entries > self._sweep_at:
            self._sweep()

    def _count(self, sequence: Sequence, sign: int) -> None:
        self.num_sequences += sign
        self.num_tokens += sign * sequence.num_queued_tokens

    def _tenant_queue_of(self, sequence: Sequence) -> "_TenantQueue":
        request = sequence.request
        name = (request.priority, request.share)
        tenant_queue = self._tenant_queues.get(name)
        if tenant_queue is None:
            tenant_queue = self._tenant_queues[name] = _TenantQueue(*name)
        return tenant_queue

    def _place(self, tenant_queue: "_TenantQueue") -> None:
        tenant_queue.place = next(self._places)
        heapq.heappush(self._heap, (tenant_queue.key(), tenant_queue.place, tenant_queue))
        if len(self._heap) > max(MIN_SWEEP, 2 * len(self._tenant_queues)):
            self._tenant_queues = {
                name: tenant_queue
                for name, tenant_queue in self._tenant_queues.items()
                if tenant_queue.sequences
            }
            self._heap = [
                (tenant_queue.key(), tenant_queue.place, tenant_queue)
                for tenant_queue in self._tenant_queues.values()
            ]
            heapq.heapify(self._heap)

    def _drop_ended(self, tenant_queue: "_TenantQueue") -> None:
        while tenant_queue.sequences and not self._is_valid(tenant_queue.sequences[0]):
            heapq.heappop(tenant_queue.sequences)
            self._num_entries -= 1

    def _is_valid(self, entry: "_Entry") -> bool:
        _, number, sequence = entry
        is_latest = sequence.queue is self and sequence.queue_number == number
        return is_latest and sequence.status is Status.WAITING

    def _sweep(self) -> None:
        for aside in self._aside.values():
            aside.entries = [entry for entry in aside.entries if self._is_valid(entry)]
        for tenant_queue in self._tenant_queues.values():
            tenant_queue.sequences = [
                entry for entry in tenant_queue.sequences if self._is_valid(entry)
            ]
            heapq.heapify(tenant_queue.sequences)
        self._tenant_queues = {
            name: tenant_queue
            for name, tenant_queue in self._tenant_queues.items()
            if tenant_queue.sequences
        }
        self._heap.clear()
        for tenant_queue in self._tenant_queues.values():
            self._place(tenant_queue)
        self._num_entries = sum(
            len(tenant_queue.sequences) for tenant_queue in self._tenant_queues.values()
        ) + sum(len(aside.entries) for aside in self._aside.values())
        self._sweep_at = max(MIN_SWEEP, 2 * self._num_entries)


# Priority, the tenant's counter, the first sequence's arrival and index.
TenantQueueKey = tuple[int, float, int, int]
# Of one push: the urgency of the sequence, the number of the push, the sequence.
_Entry = tuple[Urgency, int, Sequence]


@dataclass(slots=True)
class _Aside:
    """Sequences that a gate holds, and its generation when it did."""

    generation: int
    entries: list[_Entry] = field(default_factory=list)


class _TenantQueue:
    """Waiting sequences of one tenant and priority.

    Attributes:
        sequences: a heap.
        place: number of its valid entry in the heap.
    """

    __slots__ = ("place", "priority", "sequences", "share")

    def __init__(self, priority: int, share: Share) -> None:
        self.priority = priority
        self.share = share
        self.sequences: list[_Entry] = []
        self.place = 0

    def key(self) -> TenantQueueKey:
        _, arrival, index = self.sequences[0][0]
        return (self.priority, self.share.counter, arrival, index)
