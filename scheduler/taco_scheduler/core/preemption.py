"""Who gives way when slots or blocks run short."""

import numpy as np

from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.state.batch import Batch, BoolArray
from taco_scheduler.state.sequence import Sequence

# A tenant that has had so many tokens more than another, by their counters, gives way whatever both
# hold. They must change places by as much before the other one gives way in turn.
FAR_AHEAD = 1024.0

# Larger ones give way first: priority, what the tenant holds, arrival, index.
PreemptionKey = tuple[int, float, int, int]


class PreemptionOrder:
    """What each tenant holds of a batch, as it was when this was made.

    A tenant's load is the larger one of its parts of the slots and of the blocks, over its weight
    (its dominant share: Ghodsi et al., NSDI 2011).
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

    def standing(self, sequence: Sequence) -> PreemptionKey:
        request = sequence.request
        return (request.priority, self._load(request.share), request.arrival, sequence.index)

    def least(self) -> Sequence:
        """Who is preempted when a sequence that runs needs a block and there is none."""
        return max(self._batch.running(), key=self.standing)

    def yields_to(self, newcomer: Sequence, num_blocks: int) -> Sequence | None:
        """Who is preempted so that a sequence that waits, and needs so many blocks, can run.

        Offline work gives way to all other work. Beside that a tenant gives way to one that has had
        less and holds less, as long as it still holds at least as much afterwards; and to one that
        has had far less in any case. So nothing is ever preempted back and forth.
        """
        rows = np.flatnonzero(self._yields(newcomer, num_blocks))
        owners = (self._batch.owner(slot) for slot in self._slots[rows].tolist())
        return max(owners, key=self.standing, default=None)

    def _yields(self, newcomer: Sequence, num_blocks: int) -> BoolArray:
        """Of the running sequences those that `yields_to` may return."""
        share, fair_share, other = self._share, self._fair_share, newcomer.request.share
        is_offline = fair_share.is_offline[share]
        yields = (is_offline == other.is_offline) & (share != other.index)
        yields &= self._batch.priority[self._slots] >= newcomer.request.priority
        if yields.any():
            # A tenant that is behind would be the next one itself.
            ahead = fair_share.counters(share) - other.counter
            slots_part = (self._slots_of[share] - 1) / self._num_slots
            blocks_part = (self._blocks_of[share] - self._blocks) / self._num_blocks
            rest = np.maximum(slots_part, blocks_part) / fair_share.weights[share]
            holds_more = (ahead > FAR_AHEAD) | (rest >= self._load(other, 1, num_blocks))
            yields &= (ahead > 0) & holds_more
        return yields if other.is_offline else yields | is_offline

    def _load(self, share: Share, slots: int = 0, blocks: int = 0) -> float:
        if share.index < len(self._slots_of):
            slots += int(self._slots_of[share.index])
            blocks += int(self._blocks_of[share.index])
        return max(slots / self._num_slots, blocks / self._num_blocks) / share.weight
