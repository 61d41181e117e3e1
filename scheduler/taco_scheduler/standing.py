"""Who gives way when slots or blocks run short."""

import numpy as np

from taco_proto.steps import EMPTY
from taco_scheduler.batch import Batch, LongArray
from taco_scheduler.fair_share import Share
from taco_scheduler.sequence import Sequence

# A tenant that has had so many tokens more than another, by their counters, gives way whatever both
# hold. They must change places by as much before the other one gives way in turn.
FAR_AHEAD = 1024.0

NOBODY: LongArray = EMPTY.astype(np.int64)

# Larger ones give way first: priority, what the tenant holds, arrival, index.
Standing = tuple[int, float, int, int]


class Standings:
    """What each tenant holds of a batch, as it was when this was made.

    A tenant's load is the larger one of its parts of the slots and of the blocks, over its weight
    (its dominant share: Ghodsi et al., NSDI 2011).
    """

    def __init__(self, batch: Batch, num_blocks: int, block_size: int) -> None:
        self._batch = batch
        self._num_slots = len(batch.sequences)
        self._num_blocks = num_blocks
        self._slots = np.flatnonzero(batch.tenure >= 0)
        self._share = batch.share[self._slots]
        self._blocks = batch.capacity[self._slots] // block_size
        self._slots_of = np.bincount(self._share)
        self._blocks_of = np.bincount(self._share, self._blocks)

    def standing(self, sequence: Sequence) -> Standing:
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
        load = self._load(newcomer.request.share, 1, num_blocks)
        rows = [self._rows_that_yield(share, newcomer, load) for share in self._shares()]
        slots = self._slots[np.concatenate([NOBODY, *rows])]
        owners = (self._batch.owner(slot) for slot in slots.tolist())
        return max(owners, key=self.standing, default=None)

    def _shares(self) -> list[Share]:
        _, rows = np.unique(self._share, return_index=True)
        return [self._batch.owner(slot).request.share for slot in self._slots[rows].tolist()]

    def _rows_that_yield(self, share: Share, newcomer: Sequence, load: float) -> LongArray:
        """Of a tenant; `load` is the newcomer's once it runs."""
        other = newcomer.request.share
        if share.is_offline != other.is_offline:
            return self._rows_of(share) if share.is_offline else NOBODY
        ahead = share.counter - other.counter
        if share is other or ahead <= 0:  # if it is behind, it would be the next one itself
            return NOBODY
        rows = self._rows_of(share)
        rows = rows[self._batch.priority[self._slots[rows]] >= newcomer.request.priority]
        if ahead > FAR_AHEAD:
            return rows
        slots_part = (self._slots_of[share.index] - 1) / self._num_slots
        blocks_part = (self._blocks_of[share.index] - self._blocks[rows]) / self._num_blocks
        return rows[np.maximum(slots_part, blocks_part) / share.weight >= load]

    def _rows_of(self, share: Share) -> LongArray:
        return np.flatnonzero(self._share == share.index)

    def _load(self, share: Share, slots: int = 0, blocks: int = 0) -> float:
        if share.index < len(self._slots_of):
            slots += int(self._slots_of[share.index])
            blocks += int(self._blocks_of[share.index])
        return max(slots / self._num_slots, blocks / self._num_blocks) / share.weight
