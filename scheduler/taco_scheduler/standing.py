"""Who gives way when slots or blocks run short."""

from collections import Counter

from taco_scheduler.batch import Batch
from taco_scheduler.fair_share import Share
from taco_scheduler.sequence import Sequence

# A tenant that has had so many tokens more than another, by their counters, gives way whatever both
# hold. They must change places by as much before the other one gives way in turn.
FAR_AHEAD = 1024.0

# Larger ones give way first: priority, what the tenant holds, arrival, index.
Standing = tuple[int, float, int, int]


class Standings:
    """What each tenant holds of a batch, as it was when this was made.

    A tenant's load is the larger one of its parts of the slots and of the blocks, over its weight
    (its dominant share: Ghodsi et al., NSDI 2011).
    """

    def __init__(self, batch: Batch, num_blocks: int) -> None:
        self._batch = batch
        self._num_slots = len(batch.sequences)
        self._num_blocks = num_blocks
        self._slots: Counter[Share] = Counter()
        self._blocks: Counter[Share] = Counter()
        for sequence in batch.running():
            self._slots[sequence.request.share] += 1
            self._blocks[sequence.request.share] += num_blocks_of(sequence)

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
        candidates = [s for s in self._batch.running() if self._yields(s, newcomer, num_blocks)]
        return max(candidates, key=self.standing, default=None)

    def _yields(self, sequence: Sequence, newcomer: Sequence, num_blocks: int) -> bool:
        request, other = sequence.request, newcomer.request
        if request.share.is_offline != other.share.is_offline:
            return request.share.is_offline
        if request.share is other.share or request.priority < other.priority:
            return False
        ahead = request.share.counter - other.share.counter
        if ahead <= 0 or ahead > FAR_AHEAD:  # if it is behind, it would be the next one itself
            return ahead > 0
        load = self._load(request.share, -1, -num_blocks_of(sequence))
        return load >= self._load(other.share, 1, num_blocks)

    def _load(self, share: Share, slots: int = 0, blocks: int = 0) -> float:
        slots_part = (self._slots[share] + slots) / self._num_slots
        blocks_part = (self._blocks[share] + blocks) / self._num_blocks
        return max(slots_part, blocks_part) / share.weight


def num_blocks_of(sequence: Sequence) -> int:
    assert sequence.table is not None
    return len(sequence.table.blocks)
