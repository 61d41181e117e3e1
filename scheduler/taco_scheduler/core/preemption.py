"""Preemption: which sequence is preempted when slots or blocks run short, and how.

A preempted sequence loses its slot and blocks. It waits in the queue with its tokens, and is
computed again or found in the prefix cache. If steps in flight still sample for it, it has the
status `PREEMPTED` until their outputs have come, and is queued then.
"""

from collections.abc import Callable

import numpy as np

from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.state.batch import Batch, BoolArray
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.sequence import Sequence, Status
from taco_scheduler.state.worker_state import WorkerState

# A tenant whose counter is this many tokens ahead of another one's is preempted for it, whatever
# both hold. The other tenant must get as far ahead before it is preempted in turn.
FAR_AHEAD = 1024.0

# After no victim was found, and no sequence joined or left since: steps until the next search. In
# the meantime only tokens change the order of tenants, and slowly.
RECHECK_INTERVAL = 8

# The largest key is preempted first: priority, load of the tenant, arrival, index.
PreemptionKey = tuple[int, float, int, int]


class Preemption:
    """Picks victims among one worker's running sequences and preempts them."""

    def __init__(
        self, worker: WorkerState, waiting: WaitingQueue, counters: Counters, *, swaps: bool
    ) -> None:
        """`swaps`: the host tier keeps the blocks of a preempted sequence."""
        self._worker = worker
        self._waiting = waiting
        self._counters = counters
        self._swaps = swaps
        self._failed_search = (-1, -1, -1)
        self._steps_to_recheck = 0

    def order(self) -> "PreemptionOrder":
        """The preemption order of the sequences that run now."""
        blocks = self._worker.blocks
        return PreemptionOrder(
            self._worker.batch, self._waiting.fair_share, blocks.num_blocks, blocks.block_size
        )

    def preempt_for_next(
        self, blocked: Sequence | None, must_wait: Callable[[Sequence], bool]
    ) -> None:
        """Preempt a sequence so that the first waiting one of another tenant can run.

        Args:
            blocked: the waiting sequence that found too few blocks; None: none did.
            must_wait: whether a sequence waits for something other than a slot and blocks.
        """
        batch, waiting = self._worker.batch, self._waiting
        if not waiting.has_several_tenants or (batch.num_free_slots and blocked is None):
            return
        search = (waiting.num_pushed, batch.num_joined, batch.num_running)
        self._steps_to_recheck -= 1
        if search == self._failed_search and self._steps_to_recheck > 0:
            return
        sequence = waiting.peek()
        if sequence is None or (batch.num_free_slots and sequence is not blocked):
            return
        if must_wait(sequence):
            return
        num_blocks = -(-len(sequence.tokens) // self._worker.blocks.block_size)
        victim = self.order().pick_victim_for(sequence, num_blocks)
        if victim is None:
            self._failed_search, self._steps_to_recheck = search, RECHECK_INTERVAL
        else:
            self.preempt(victim)

    def preempt(self, sequence: Sequence) -> None:
        """Take slot and blocks away from a running sequence, and queue it.

        It is queued at once, or with the last output of the steps in flight that sample for it.
        """
        worker = self._worker
        self._counters.num_preemptions += 1
        generation = sequence.slot_generation
        sequence.num_outputs_in_flight = worker.in_flight.num_sampling_steps(generation)
        worker.release(sequence, swaps=self._swaps)
        if sequence.num_outputs_in_flight:
            sequence.status = Status.PREEMPTED
            worker.preempted[generation] = sequence
        elif sequence.candidates is not None:
            sequence.status = Status.HELD
        else:
            self._waiting.push(sequence)

    def on_output(self, sequence: Sequence) -> None:
        """Record that an output in flight of a preempted sequence was committed.

        The last output queues the sequence. Not to be called if the output ended the sequence.
        """
        sequence.num_outputs_in_flight -= 1
        if sequence.num_outputs_in_flight == 0:
            del self._worker.preempted[sequence.slot_generation]
            self._waiting.push(sequence)


class PreemptionOrder:
    """The order in which running sequences are preempted, at the time it was made.

    The load of a tenant is the larger one of its parts of the slots and of the blocks, divided by
    its weight (the dominant share of Ghodsi et al., NSDI 2011).
    """

    def __init__(
        self, batch: Batch, fair_share: FairShare, num_blocks: int, block_size: int
    ) -> None:
        self._batch = batch
        self._fair_share = fair_share
        self._num_slots = len(batch.sequences)
        self._num_blocks = num_blocks
        self._slots = np.flatnonzero(batch.slot_generation >= 0)
        self._share = batch.share[self._slots]
        self._blocks = batch.capacity[self._slots] // block_size
        self._slots_of = np.bincount(self._share)
        self._blocks_of = np.bincount(self._share, self._blocks)

    def key(self, sequence: Sequence) -> PreemptionKey:
        """Sort key of a sequence; the largest one is preempted first."""
        request = sequence.request
        return (request.priority, self._load(request.share), request.arrival, sequence.index)

    def pick_victim(self) -> Sequence:
        """The sequence to preempt when a running one needs a block and none is free."""
        return max(self._batch.running(), key=self.key)

    def pick_victim_for(self, newcomer: Sequence, num_blocks: int) -> Sequence | None:
        """The sequence to preempt so that a waiting one, which needs `num_blocks`, can run.

        Interactive requests preempt offline requests. In addition, a tenant is preempted for
        another one that has been served less and holds less, if it still holds at least as much
        afterwards. A tenant that is far ahead is preempted in any case. So two tenants never
        preempt each other in turns.

        Returns:
            None if no sequence may be preempted.
        """
        rows = np.flatnonzero(self._candidates(newcomer, num_blocks))
        owners = (self._batch.owner(slot) for slot in self._slots[rows].tolist())
        return max(owners, key=self.key, default=None)

    def _candidates(self, newcomer: Sequence, num_blocks: int) -> BoolArray:
        """Which running sequences `pick_victim_for` may return."""
        share, fair_share, other = self._share, self._fair_share, newcomer.request.share
        is_offline = fair_share.is_offline[share]
        candidates = (is_offline == other.is_offline) & (share != other.index)
        candidates &= self._batch.priority[self._slots] >= newcomer.request.priority
        if candidates.any():
            # A tenant that is behind the newcomer's would be the next to preempt it.
            ahead = fair_share.counters(share) - other.counter
            slots_part = (self._slots_of[share] - 1) / self._num_slots
            blocks_part = (self._blocks_of[share] - self._blocks) / self._num_blocks
            rest = np.maximum(slots_part, blocks_part) / fair_share.weights[share]
            holds_more = (ahead > FAR_AHEAD) | (rest >= self._load(other, 1, num_blocks))
            candidates &= (ahead > 0) & holds_more
        return candidates if other.is_offline else candidates | is_offline

    def _load(self, share: Share, slots: int = 0, blocks: int = 0) -> float:
        """A tenant's load, with additional slots and blocks."""
        if share.index < len(self._slots_of):
            slots += int(self._slots_of[share.index])
            blocks += int(self._blocks_of[share.index])
        return max(slots / self._num_slots, blocks / self._num_blocks) / share.weight
