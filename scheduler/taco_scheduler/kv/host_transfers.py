"""Host transfers: the blocks of the host tier, and the copies between it and the device."""

from collections.abc import Iterable
from itertools import takewhile

import numpy as np

from taco_proto.steps import BlockCopies
from taco_scheduler.kv.block_pool import BlockPool
from taco_scheduler.kv.radix_node import NO_BLOCK

Copies = dict[int, int]  # source by target; the copies of a step have different targets


class HostTransfers:
    """The blocks of the worker's host memory.

    The owners of a host block are the radix tree, each copy that is planned or in flight, and the
    disk tier while it writes the block or keeps what it read. So a block is free only when all
    reads and writes of it are done. A block copied from the device can be read once the step with
    the copy has succeeded.
    """

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError if `num_blocks` is below 1."""
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self._is_filled = bytearray()  # of the blocks that were ever taken
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
        """Plan copies of device blocks to host blocks; enough of them are free.

        Returns:
            The host blocks. The radix tree owns them.
        """
        targets = self.take(len(sources))
        self._pool.retain(targets)
        self._offloads.update(zip(targets, sources, strict=True))
        return targets

    def load(self, sources: list[int], targets: Iterable[int]) -> None:
        """Plan copies of host blocks to device blocks; the host blocks are kept until then."""
        self._pool.retain(sources)
        self._loads.update(zip(targets, sources, strict=True))

    def take(self, count: int) -> list[int]:
        """Take free blocks, of which there are enough; they cannot be read before `fill`."""
        blocks = self._pool.allocate(count)
        assert blocks is not None
        num_taken = max(blocks, default=-1) + 1
        if num_taken > len(self._is_filled):
            self._is_filled.extend(bytes(num_taken - len(self._is_filled)))
        for block in blocks:
            self._is_filled[block] = False
        return list(blocks)

    def fill(self, block: int) -> None:
        """Mark a block as readable."""
        self._is_filled[block] = True

    def retain(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block."""
        self._pool.retain(blocks)

    def cancel_loads(self, targets: Iterable[int]) -> None:
        """Cancel unsent loads into device blocks that are evicted."""
        if self._loads:
            for target in targets:
                source = self._loads.pop(target, None)
                if source is not None:
                    self._pool.release([source])

    def release(self, blocks: Iterable[int]) -> None:
        """Remove an owner of each block; `NO_BLOCK` entries are skipped."""
        self._pool.release(block for block in blocks if block != NO_BLOCK)

    def num_readable(self, blocks: list[int]) -> int:
        """Number of leading blocks that can be read."""
        return sum(1 for _ in takewhile(self.is_readable, blocks))

    def is_readable(self, block: int) -> bool:
        return block != NO_BLOCK and bool(self._is_filled[block])

    def is_copied(self, block: int) -> bool:
        """Whether a copy or the disk tier still uses this block of the tree."""
        return self._pool.num_owners(block) > 1

    # ------------------------------------------------------------------ steps

    def take_copies(self, step_id: int) -> BlockCopies | None:
        """The copies planned since the last call, for a step to begin with; None: no copies."""
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
        """Record that the copies of the steps up to `step_id` are done."""
        for done in [step for step in self._in_flight if step <= step_id]:
            offloads, loads = self._in_flight.pop(done)
            for target in offloads:
                self._is_filled[target] = True
            self._pool.release(offloads)
            self._pool.release(loads.values())

    def withdraw(self) -> None:
        """Drop all copies that are planned or in flight: a step failed."""
        for offloads, loads in [*self._in_flight.values(), (self._offloads, self._loads)]:
            self._pool.release(offloads)
            self._pool.release(loads.values())
        self._in_flight.clear()
        self._offloads, self._loads = {}, {}
