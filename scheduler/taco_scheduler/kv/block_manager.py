"""Block manager: allocates each sequence's blocks from the pool and the prefix cache."""

from collections.abc import Callable, Iterator, Sequence

from taco_proto.steps import BlockCopies, IntArray
from taco_scheduler.kv.block_ids import BlockIds, block_ids
from taco_scheduler.kv.block_pool import BlockPool
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.device_blocks import DeviceBlocks
from taco_scheduler.kv.disk_index import DiskIndex
from taco_scheduler.kv.disk_transfers import DiskTransfers, PrefixRead, PrefixSave
from taco_scheduler.kv.hit_counts import HitCounts
from taco_scheduler.kv.host_transfers import HostTransfers
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.no_disk_tier import NoDiskTier
from taco_scheduler.kv.pinned_prefixes import PinnedPrefixes
from taco_scheduler.kv.radix_node import CachedPrefix, Node
from taco_scheduler.kv.radix_tree import RadixTree
from taco_scheduler.token_ids import TOKEN_BYTES


class BlockManager:
    """Owns the device blocks and host blocks of one worker.

    A device block is *free*, *cached* (only the radix tree holds it, no sequence pins it, and it is
    evictable) or *active* (all others). An allocation gets free blocks, then cached ones.

    Evicted blocks go to the host tier, and are loaded when a sequence matches them. The worker
    makes both copies before the rows of the next step, which gets them from `take_copies`.

    Attributes:
        block_bytes: size of one block's packed token ids.
        disk: the disk tier; its reads and writes go through the host tier.
        hits: where the blocks of admitted sequences were found.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        num_host_blocks: int = 0,
        num_disk_blocks: int = 0,
        offload_min_accesses: int = 1,
        max_cached_device_blocks: int | None = None,
        max_pinned_share: float = 0.5,
        log_hit_counts: bool = False,
    ) -> None:
        """
        Args:
            num_host_blocks: blocks of the host tier; 0: no host tier.
            num_disk_blocks: maximum files of the disk tier; 0: no disk tier.
            offload_min_accesses: blocks that fewer sequences have used are not offloaded.
            max_cached_device_blocks: maximum cached blocks; None: no maximum.
            max_pinned_share: maximum part of the device's blocks that `pin_prefix` keeps.
            log_hit_counts: log the hit counts after every hundred blocks.

        Raises:
            ValueError: `num_blocks` or `block_size` is below 1, or `num_host_blocks` below 0.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.hits = HitCounts(is_logged=log_hit_counts)
        self.block_bytes = block_size * TOKEN_BYTES
        self._live: set[BlockTable] = set()
        self._pool = BlockPool(num_blocks)
        self._host = (
            HostTransfers(num_host_blocks) if num_host_blocks and enable_prefix_caching else None
        )
        self._tree = RadixTree(self.block_bytes, self._host, offload_min_accesses)
        self._pins = PinnedPrefixes(self._tree, int(max_pinned_share * num_blocks))
        self._device = DeviceBlocks(self._pool, self._tree, self._pins, max_cached_device_blocks)
        self.disk: DiskTransfers | NoDiskTier = NoDiskTier()
        host, host_cache = self._host, self._tree.host_cache
        if num_disk_blocks and host is not None and host_cache is not None:
            index = DiskIndex(num_disk_blocks, self.block_bytes)
            self.disk = DiskTransfers(index, host, host_cache, self._tree)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation can get: free and cached ones."""
        return self._device.num_available

    @property
    def usage(self) -> float:
        """Active part of the blocks, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks

    @property
    def num_pinned_blocks(self) -> int:
        """Pinned blocks; blocks of overlapping prefixes count twice."""
        return self._pins.num_blocks

    @property
    def num_used_snapshots(self) -> int:
        """State snapshots that are not free."""
        return self._tree.snapshots.num_used

    @property
    def num_used_host_blocks(self) -> int:
        return 0 if self._host is None else self._host.num_used

    def allocate(
        self,
        tokens: memoryview | bytes,
        num_tokens: int,
        namespace: CacheNamespace,
        *,
        read_cache: bool = True,
        num_spare_blocks: int = 0,
        found: CachedPrefix | None = None,
    ) -> BlockTable | None:
        """Make a sequence's block table: its longest cached prefix, pinned, and new blocks.

        Blocks of the prefix that only the host holds are loaded before the next step runs.

        Args:
            tokens: packed ids of the whole sequence. At least one token is left to compute.
            num_tokens: tokens that the table must cover, in addition to the cached prefix.
            read_cache: False takes new blocks only. The sequence's blocks are cached in any case.
            num_spare_blocks: blocks that must remain available for others.
            found: the result of `find` for these tokens, if nothing has changed since.

        Returns:
            None, and nothing has changed, if there are too few blocks.
        """
        while True:
            prefix = found or self.find(tokens, namespace, read_cache=read_cache)
            found = None
            match, num_matched = prefix.match, prefix.num_blocks
            num_loaded = num_matched - len(match.blocks)
            num_new = max(-(-num_tokens // self.block_size), num_matched) - len(match.blocks)
            if num_new + num_spare_blocks <= self.num_free_blocks - match.num_evictable:
                break
            if not self._device.evict_pin_for(num_new + num_spare_blocks, match):
                return None
        node = self._tree.pin(match)
        self._pool.retain(match.blocks)
        new = self._device.take(num_new)
        if num_loaded:
            self._pool.retain(new[:num_loaded])
            self._tree.load(node, new[: match.num_host_blocks])
        if prefix.read_keys:
            key = self._packed(tokens, num_matched - len(prefix.read_keys), num_matched)
            blocks = new[match.num_host_blocks : num_loaded]
            host_blocks = self.disk.pop(prefix.read_keys)
            node = self._tree.load_behind(node, key, blocks, host_blocks)
        table = BlockTable(
            match.blocks + new, num_matched * self.block_size, node, num_matched, namespace
        )
        self._live.add(table)
        self.hits.add(len(match.blocks), num_loaded, num_new - num_loaded)
        return table

    def find(
        self, tokens: memoryview | bytes, namespace: CacheNamespace, *, read_cache: bool = True
    ) -> CachedPrefix:
        """The cached prefix that `allocate` would use; changes nothing."""
        num_ids = memoryview(tokens).nbytes // TOKEN_BYTES
        may_read = read_cache and self.enable_prefix_caching
        num_readable = (num_ids - 1) // self.block_size if may_read else 0
        key = tokens if isinstance(tokens, bytes) else bytes(tokens)
        match = self._tree.match(namespace, key, num_readable)
        num_matched = len(match.blocks) + match.num_host_blocks
        read_keys: list[bytes] = []
        if self.disk.exists and num_matched < num_readable:
            key = self._packed(tokens, 0, num_readable)
            read_keys = self.disk.find(namespace, key, num_matched)
        return CachedPrefix(match, read_keys)

    def num_cached_tokens(self, tokens: memoryview | bytes, namespace: CacheNamespace) -> int:
        """Tokens in the cached prefix that `allocate` would use; changes nothing."""
        return self.find(tokens, namespace).num_blocks * self.block_size

    def hot_nodes(self) -> Iterator[Node]:
        """The nodes of the prefix cache, the hottest first: pinned, in use, recently used.

        The cache must not change while the result is read.
        """
        seen: set[Node] = set()
        for node in (*self._pins.nodes(), *(table.node for table in self._live)):
            while node is not None and node.parent is not None and node not in seen:
                seen.add(node)
                yield node
                node = node.parent
        yield from (node for node in self._tree.unlocked_nodes() if node not in seen)

    def extend(self, table: BlockTable, num_tokens: int) -> BlockIds | None:
        """Append blocks until a table covers `num_tokens` tokens.

        Returns:
            The appended blocks; None, and nothing has changed, if there are too few.

        Raises:
            RuntimeError: the table has been released.
        """
        self._check_live(table)
        return self._device.extend(table, -(-num_tokens // self.block_size))

    def extend_all(
        self, tables: Sequence[BlockTable], num_tokens: IntArray
    ) -> tuple[list[int], BlockIds]:
        """Append blocks until each table covers its number of tokens; they must be available.

        Returns:
            The number of blocks appended to each table, and the blocks, table after table.

        Raises:
            RuntimeError: a table has been released.
        """
        if not self._live.issuperset(tables):
            raise RuntimeError("the block table has been released")
        num_blocks: list[int] = (-(-num_tokens // self.block_size)).tolist()
        return self._device.extend_all(tables, num_blocks)

    def pin_prefix(
        self, tokens: memoryview | bytes, namespace: CacheNamespace, until: float, owner: str = ""
    ) -> bool:
        """Keep the cached blocks of a prefix on the device until a time (see `PinnedPrefixes`).

        The oldest pinned prefix is evicted if a sequence needs its blocks.

        Returns:
            False, and nothing is kept, if that is no whole block or more than the limit.
        """
        num_blocks = memoryview(tokens).nbytes // self.block_bytes
        return self._pins.add(namespace, self._packed(tokens, 0, num_blocks), until, owner)

    def expire(self, now: float) -> None:
        """Unpin the prefixes whose time has passed."""
        self._pins.expire(now)

    def publish(
        self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int, step_id: int | None
    ) -> None:
        """Cache the full blocks of tokens[:num_tokens], which a planned step fills (None: filled).

        Where the tree has another sequence's blocks for the same tokens, it keeps those, and this
        sequence keeps its own.

        Raises:
            RuntimeError: the table has been released.
            ValueError: `num_tokens` is more than the table or `tokens` holds.
        """
        self._check_live(table)
        self._cache_full_blocks(table, tokens, num_tokens, step_id)
        self._save_prefix(table, tokens, num_tokens)

    def take_copies(self, step_id: int) -> BlockCopies | None:
        """The copies that the next step begins with; to be called when its rows are known.

        Offloaded blocks can be matched again once that step is confirmed.
        """
        self.disk.save(may_copy=True)
        return self._tree.take_copies(step_id)

    def flush(self) -> None:
        """Write the cached prefixes to disk, recently used ones first, until `disk.is_flushed`.

        To be called when no sequence runs.
        """
        self.disk.flush(self.hot_nodes())

    def read_ahead(
        self,
        tokens: memoryview | bytes,
        namespace: CacheNamespace,
        is_worth_it: Callable[[int, int], bool],
    ) -> PrefixRead | None:
        """Read a waiting sequence's prefix from disk, behind its cached blocks, for `allocate`.

        Args:
            is_worth_it: whether to read a number of blocks, after a number of others.

        Returns:
            The read to wait for; None if the files on disk are not known yet.
        """
        num_readable = (memoryview(tokens).nbytes // TOKEN_BYTES - 1) // self.block_size
        key = self._packed(tokens, 0, num_readable)
        match = self._tree.match(namespace, key)
        num_matched = len(match.blocks) + match.num_host_blocks
        return self.disk.read_ahead(namespace, key, num_matched, is_worth_it)

    def confirm(self, step_id: int) -> None:
        """Confirm the blocks and copies of the steps up to `step_id`, which have succeeded."""
        self._tree.confirm(step_id)
        self.disk.may_write = True

    def withdraw(self) -> None:
        """Remove the blocks of unconfirmed steps from all tiers, because a step failed.

        Tables that shared such a block hold tokens that were never computed. The caller releases
        them and all tables of the failed steps. Until then they are sealed, so that no such block
        is cached.
        """
        removed = self._tree.withdraw()
        for table in self._live:
            while table.node in removed:
                table.sealed = True
                table.num_pinned_blocks -= len(table.node.blocks)
                table.node = table.node.parent
        self._pins.note_removed(removed)
        for node in removed:
            self._pool.release(node.blocks)

    def discard_on_release(self, table: BlockTable) -> None:
        """Keep the KV of a failed sequence out of the cache: `release` discards its prefix.

        Raises:
            RuntimeError: the table has been released.
        """
        self._check_live(table)
        table.sealed = table.is_discarded = True

    def discard(self, tokens: memoryview | bytes, namespace: CacheNamespace) -> None:
        """Remove a prefix from all tiers, from its end up to where a sequence or a pin uses it or
        another prefix continues it."""
        key = self._packed(tokens, 0, memoryview(tokens).nbytes // self.block_bytes)
        path = self._tree.path(namespace, key)
        if path and path[-1][1] == path[-1][0].num_blocks:
            self._pool.release(self._tree.discard(path[-1][0]))
        self.disk.discard(None, namespace, key)

    def release(
        self,
        table: BlockTable,
        tokens: memoryview | bytes,
        num_valid_tokens: int,
        *,
        comes_back: bool = False,
    ) -> None:
        """Release a table, once: its sequence finished, was aborted or is preempted.

        The full blocks of tokens[:num_valid_tokens], whose KV has been computed, stay cached. The
        others become free unless another sequence shares them.

        Args:
            comes_back: the cached blocks are copied to the host on eviction, however few sequences
                have used them.

        Raises:
            RuntimeError: the table has been released.
            ValueError: `num_valid_tokens` is more than the table or `tokens` holds.
        """
        self._check_live(table)
        self._cache_full_blocks(table, tokens, num_valid_tokens, None)
        self._save_prefix(table, tokens, num_valid_tokens)
        self._live.remove(table)
        if table.save is not None:
            table.save.was_touched = False  # its files count as used once more
        assert table.node is not None
        if comes_back:
            self._tree.mark_as_used(table.node)
        self._tree.unpin(table.node)
        self._pool.release(table.blocks)
        if table.is_discarded:
            self._pool.release(self._tree.discard(table.node))
            if self.disk.exists:
                key = self._packed(tokens, 0, memoryview(tokens).nbytes // self.block_bytes)
                self.disk.discard(table.save, table.namespace, key)
        table.node = None
        table.blocks = block_ids()
        self._device.evict_excess()

    def _cache_full_blocks(
        self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int, step_id: int | None
    ) -> None:
        start, end = table.num_pinned_blocks, num_tokens // self.block_size
        if end <= start or table.sealed or not self.enable_prefix_caching:
            return
        key = self._packed(tokens, start, end)
        if end > len(table.blocks) or len(key) < (end - start) * self.block_bytes:
            raise ValueError(f"{num_tokens} tokens are more than the sequence has")
        assert table.node is not None
        table.node, taken = self._tree.insert(table.node, key, table.blocks[start:end], step_id)
        table.num_pinned_blocks = end
        self._pool.retain(taken)

    def _save_prefix(self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int) -> None:
        """Have the disk tier write what a sequence has computed. Copies no token ids of `bytes`."""
        if not self.disk.exists or num_tokens < self.block_size or table.sealed:
            return
        num_blocks = num_tokens // self.block_size
        if not isinstance(tokens, bytes):
            tokens = self._packed(tokens, 0, num_blocks)
        if table.save is None:
            table.save = PrefixSave(table.namespace, tokens, num_blocks)
        table.save.tokens, table.save.num_blocks = tokens, num_blocks
        self.disk.save_prefix(table.save)

    def _packed(self, tokens: memoryview | bytes, start: int, end: int) -> bytes:
        """The packed ids of the blocks start … end - 1."""
        first, last = start * self.block_bytes, end * self.block_bytes
        if isinstance(tokens, bytes):
            return tokens[first:last]
        return bytes(memoryview(tokens).cast("B")[first:last])

    def _check_live(self, table: BlockTable) -> None:
        if table not in self._live:
            raise RuntimeError("the block table has been released")
