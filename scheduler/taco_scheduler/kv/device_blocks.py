"""Device blocks: allocates the blocks that sequences and the prefix cache share."""

from collections.abc import Sequence

from taco_scheduler.kv.block_ids import BlockIds, block_ids
from taco_scheduler.kv.block_pool import BlockPool
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.pinned_prefixes import PinnedPrefixes
from taco_scheduler.kv.radix_node import PrefixMatch
from taco_scheduler.kv.radix_tree import RadixTree


class DeviceBlocks:
    """Takes free blocks first, then evicts cached ones, then pinned prefixes."""

    def __init__(
        self, pool: BlockPool, tree: RadixTree, pins: PinnedPrefixes, max_cached: int | None
    ) -> None:
        """`max_cached`: maximum evictable blocks in the cache; None: no maximum."""
        self._pool = pool
        self._tree = tree
        self._pins = pins
        self._max_cached = pool.num_blocks if max_cached is None else max_cached

    @property
    def num_available(self) -> int:
        """Blocks that are free or can be evicted."""
        return self._pool.num_free + self._tree.num_evictable

    def take(self, count: int) -> BlockIds:
        """Take `count` blocks; the caller knows that they are available."""
        shortage = count - self._pool.num_free
        if shortage > 0:
            self._pool.release(self._tree.evict(shortage))
        blocks = self._pool.allocate(count)
        assert blocks is not None
        return blocks

    def evict_pin_for(self, count: int, needed: PrefixMatch | None = None) -> bool:
        """Evict the oldest pinned prefixes so that `count` blocks become available.

        Args:
            needed: a cached prefix whose blocks do not count; None: all count.

        Returns:
            False, and nothing is evicted, if evicting every pinned prefix would not be enough.
        """
        num_available = self.num_available - (0 if needed is None else needed.num_evictable)
        return self._pins.evict_for(count - num_available, needed)

    def evict_excess(self) -> None:
        """Evict the cached blocks above the maximum."""
        num_excess = self._tree.num_evictable - self._max_cached
        if num_excess > 0:
            self._pool.release(self._tree.evict(num_excess))

    def extend(self, table: BlockTable, num_blocks: int) -> BlockIds | None:
        """Append blocks to a table until it has `num_blocks`; evicts pinned prefixes if needed.

        Returns:
            The appended blocks; None, and the table is unchanged, if too few are available.
        """
        missing = num_blocks - len(table.blocks)
        if missing <= 0:
            return block_ids()
        while missing > self.num_available:
            if not self.evict_pin_for(missing):
                return None
        blocks = self.take(missing)
        table.blocks += blocks
        return blocks

    def extend_all(
        self, tables: Sequence[BlockTable], num_blocks: Sequence[int]
    ) -> tuple[list[int], BlockIds]:
        """Append blocks until each table has its number of blocks; they must be available.

        Returns:
            The number of blocks appended to each table, and the blocks, table after table.
        """
        missing = [
            max(0, count - len(table.blocks))
            for table, count in zip(tables, num_blocks, strict=True)
        ]
        taken, start = self.take(sum(missing)), 0
        for table, count in zip(tables, missing, strict=True):
            if count == 1:  # the usual case: a decode that has filled its last block
                table.blocks.append(taken[start])
            else:
                table.blocks += taken[start : start + count]
            start += count
        return missing, taken
