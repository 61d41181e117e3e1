"""The host tier: whose its blocks are, and the copies between it and the device."""

from collections.abc import Iterable
from itertools import takewhile

import numpy as np

from taco_proto.steps import BlockCopies
from taco_scheduler.kv.block_pool import BlockPool
from taco_scheduler.kv.radix_node import NO_BLOCK

Copies = dict[int, int]  # by target, which no two copies of a step share


class HostBlocks:
    """The blocks of the worker's host memory.

    A host block has as owners the radix tree, every copy that is planned or in flight, and whoever
    writes it to disk or has read it from there. So it is free, for the target of another copy, only
    when all that read or write it are done.
    A copy from the device can be read when its step is known to have succeeded.
    """

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError if `num_blocks` is below 1."""
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self._is_filled = bytearray()  # of the blocks that were ever taken, the lowest ones
        self._offloads: Copies = {}  # host block → device block; not sent yet
        self._loads: Copies = {}  # device block → host block; not sent yet
        self._in_flight: dict[int, tuple[Copies, Copies]] = {}  # by step

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    # ----------------------------------------------------------------- blocks

    def offload(self, sources: list[int]) -> list[int]:
        """Plans copies of device blocks to free host blocks, of which there are enough.

        Returns:
            The host blocks, which the tree owns.
        """
        targets = self.take(len(sources))
        self._pool.retain(targets)
        self._offloads.update(zip(targets, sources, strict=True))
        return targets

    def load(self, sources: list[int], targets: Iterable[int]) -> None:
        """Plans copies of host blocks, which stay what they are until the step is done."""
        self._pool.retain(sources)
        self._loads.update(zip(targets, sources, strict=True))

    def take(self, count: int) -> list[int]:
        """Gives the caller free blocks, of which there are enough; they are empty until `fill`."""
        blocks = self._pool.allocate(count)
        assert blocks is not None
        num_taken = max(blocks, default=-1) + 1
        if num_taken > len(self._is_filled):
            self._is_filled.extend(bytes(num_taken - len(self._is_filled)))
        for block in blocks:
            self._is_filled[block] = False
        return list(blocks)

    def fill(self, block: int) -> None:
        self._is_filled[block] = True

    def retain(self, blocks: Iterable[int]) -> None:
        """Keeps blocks as they are until they are released."""
        self._pool.retain(blocks)

    def cancel_loads(self, targets: Iterable[int]) -> None:
        """These device blocks go to others before their loads were sent, if there are any."""
        if self._loads:
            for target in targets:
                source = self._loads.pop(target, None)
                if source is not None:
                    self._pool.release([source])

    def release(self, blocks: Iterable[int]) -> None:
        """An owner, the tree for instance, gives up blocks."""
        self._pool.release(block for block in blocks if block != NO_BLOCK)

    def num_readable(self, blocks: list[int]) -> int:
        """How many of the first of `blocks` hold their KV."""
        return sum(1 for _ in takewhile(self.is_readable, blocks))

    def is_readable(self, block: int) -> bool:
        return block != NO_BLOCK and bool(self._is_filled[block])

    def is_copied(self, block: int) -> bool:
        """A copy that reads or writes this block of the tree is not known to be done."""
        return self._pool.num_owners(block) > 1

    # ------------------------------------------------------------------ steps

    def take_copies(self, step_id: int) -> BlockCopies | None:
        """What was planned since the last time, for a step to begin with; None if nothing was."""
        if not self._offloads and not self._loads:
            return None
        offloads, loads = self._offloads, self._loads
        self._offloads, self._loads = {}, {}
        self._in_flight[step_id] = offloads, loads
        return BlockCopies(
            offload_sources=np.array(list(offloads.values()), dtype=np.int32),
            offload_targets=np.array(list(offloads), dtype=np.int32),
            load_sources=np.array(list(loads.values()), dtype=np.int32),
            load_targets=np.array(list(loads), dtype=np.int32),
        )

    def confirm(self, step_id: int) -> None:
        """The copies of the steps up to `step_id` are done."""
        for done in [step for step in self._in_flight if step <= step_id]:
            offloads, loads = self._in_flight.pop(done)
            for target in offloads:
                self._is_filled[target] = True
            self._pool.release(offloads)
            self._pool.release(loads.values())

    def withdraw(self) -> None:
        """No copy that is planned or in flight will ever be done."""
        for offloads, loads in [*self._in_flight.values(), (self._offloads, self._loads)]:
            self._pool.release(offloads)
            self._pool.release(loads.values())
        self._in_flight.clear()
        self._offloads, self._loads = {}, {}
