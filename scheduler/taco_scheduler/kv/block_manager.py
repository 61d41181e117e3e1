"""Where the KV of each sequence lives: block tables over the pool and the prefix cache."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.steps import BlockCopies, IntArray
from taco_scheduler.kv.block_ids import BlockIds, block_ids
from taco_scheduler.kv.block_pool import BlockPool
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.device_blocks import DeviceBlocks
from taco_scheduler.kv.disk_index import DiskIndex
from taco_scheduler.kv.disk_transfers import DiskTransfers, PrefixRead, PrefixSave
from taco_scheduler.kv.hit_counts import HitCounts
from taco_scheduler.kv.host_blocks import HostBlocks
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.pinned_prefixes import PinnedPrefixes
from taco_scheduler.kv.radix_node import CachedPrefix, Node
from taco_scheduler.kv.radix_tree import RadixTree
from taco_scheduler.token_ids import TOKEN_BYTES


class BlockManager:
    """Owns every device block, and every host block.

    A device block is *free*, *cached* (only the radix tree holds it, and no sequence pins it:
    evictable) or *active* (all others). What is free or cached, an allocation can get.

    What is evicted goes to the host tier and comes back when it is asked for. Both are copies that
    the worker makes before the rows of the next step: whoever plans a step calls `take_copies`.
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
            num_host_blocks: blocks of the host tier; 0: there is none.
            num_disk_blocks: the most files of the disk tier below it; 0: there is none.
            offload_min_accesses: what fewer sequences have used is lost when it is evicted.
            max_cached_device_blocks: the most cached blocks; None: as many as there is room for.
            max_pinned_share: the most of the device's blocks that `pin_prefix` keeps.
            log_hit_counts: log where blocks were found after every hundred of them.

        Raises:
            ValueError: `num_blocks` or `block_size` is below 1, or `num_host_blocks` below 0.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.hits = HitCounts(is_logged=log_hit_counts)
        self._block_bytes = block_size * TOKEN_BYTES
        self._live: set[BlockTable] = set()
        self._pool = BlockPool(num_blocks)
        self._host = (
            HostBlocks(num_host_blocks) if num_host_blocks and enable_prefix_caching else None
        )
        self._tree = RadixTree(self._block_bytes, self._host, offload_min_accesses)
        self._pins = PinnedPrefixes(self._tree, int(max_pinned_share * num_blocks))
        self._device = DeviceBlocks(self._pool, self._tree, self._pins, max_cached_device_blocks)
        self._disk = self._make_disk_transfers(num_disk_blocks) if num_disk_blocks else None

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation could get: free and cached ones."""
        return self._device.num_available

    @property
    def usage(self) -> float:
        """Share of the blocks that are active, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks that `pin_prefix` keeps; those of overlapping prefixes count twice."""
        return self._pins.num_blocks

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
        """Makes a sequence's table: its longest cached prefix, pinned, and new blocks behind it.

        What only the host holds of the prefix is loaded into new blocks before the next step runs.

        Args:
            tokens: packed int32 ids of the whole sequence, prompt and emitted tokens. At least one
                of them is left to compute.
            num_tokens: tokens that the table must cover; it covers the cached prefix in any case.
            read_cache: False takes new blocks only. The sequence's blocks are cached nevertheless.
            num_spare_blocks: so many blocks must be left for others.
            found: what `find` returned for these tokens, if nothing has changed since.

        Returns:
            None, and nothing has changed, if there are too few blocks.
        """
        while True:
            prefix = found or self.find(tokens, namespace, read_cache=read_cache)
            found = None
            match, num_matched = prefix.match, prefix.num_blocks
            num_loaded = num_matched - len(match.blocks)
            num_new = max(self._num_blocks_for(num_tokens), num_matched) - len(match.blocks)
            if num_new + num_spare_blocks <= self.num_free_blocks - match.num_evictable:
                break
            if not self._device.evict_pin_for(num_new + num_spare_blocks):
                return None
        node = self._tree.pin(match)
        self._pool.retain(match.blocks)
        new = self._device.take(num_new)
        if num_loaded:
            self._pool.retain(new[:num_loaded])
            self._tree.load(node, new[: match.num_host_blocks])
        if self._disk is not None and prefix.read_keys:
            key = self._packed(tokens, num_matched - len(prefix.read_keys), num_matched)
            blocks = new[match.num_host_blocks : num_loaded]
            host_blocks = self._disk.pop(prefix.read_keys)
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
        """What `allocate` would find of a sequence in the cache; changes nothing."""
        num_ids = memoryview(tokens).nbytes // TOKEN_BYTES
        may_read = read_cache and self.enable_prefix_caching
        num_readable = (num_ids - 1) // self.block_size if may_read else 0
        key = tokens if isinstance(tokens, bytes) else bytes(tokens)
        match = self._tree.match(namespace, key, num_readable)
        num_matched = len(match.blocks) + match.num_host_blocks
        read_keys: list[bytes] = []
        if self._disk is not None and num_matched < num_readable:
            key = self._packed(tokens, 0, num_readable)
            read_keys = self._disk.find(namespace, key, num_matched)
        return CachedPrefix(match, read_keys)

    def num_cached_tokens(self, tokens: memoryview | bytes, namespace: CacheNamespace) -> int:
        """Tokens of a sequence that `allocate` would find in the cache; changes nothing."""
        return self.find(tokens, namespace).num_blocks * self.block_size

    @property
    def block_bytes(self) -> int:
        """Size of a block's packed token ids."""
        return self._block_bytes

    def hot_nodes(self) -> Iterator[Node]:
        """The nodes of the prefix cache: what is pinned, what sequences use, then what was used
        last. To be read at once: no change may come in between.
        """
        seen: set[Node] = set()
        for node in (*self._pins.nodes(), *(table.node for table in self._live)):
            while node is not None and node.parent is not None and node not in seen:
                seen.add(node)
                yield node
                node = node.parent
        yield from (node for node in self._tree.unlocked_nodes() if node not in seen)

    def extend(self, table: BlockTable, num_tokens: int) -> BlockIds | None:
        """Appends blocks until the table covers `num_tokens` tokens.

        Returns:
            The appended blocks; None, and nothing has changed, if there are too few.

        Raises:
            RuntimeError: the table has been released.
        """
        self._check_live(table)
        return self._device.extend(table, self._num_blocks_for(num_tokens))

    def extend_all(
        self, tables: Sequence[BlockTable], num_tokens: IntArray
    ) -> tuple[list[int], BlockIds]:
        """Appends blocks until each table covers its number of tokens; there must be as many.

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
        """Keeps the cached blocks of a prefix on the device until a time (see `PinnedPrefixes`).

        The oldest pinned prefix is evicted if a sequence needs its blocks.

        Returns:
            False, and nothing is kept, if that is no whole block, or more than may be.
        """
        num_blocks = memoryview(tokens).nbytes // self._block_bytes
        return self._pins.add(namespace, self._packed(tokens, 0, num_blocks), until, owner)

    def expire(self, now: float) -> None:
        """Lets go of prefixes that were pinned up to now."""
        self._pins.expire(now)

    def publish(
        self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int, step_id: int
    ) -> None:
        """Makes the full blocks of tokens[:num_tokens] matchable: the plan that fills them is sent.

        Where another sequence published the same tokens first, the tree keeps that one's blocks and
        this sequence keeps its own.

        Raises:
            RuntimeError: the table has been released.
            ValueError: `num_tokens` is more than the table or `tokens` holds.
        """
        self._check_live(table)
        self._cache_full_blocks(table, tokens, num_tokens, step_id)
        self._save_prefix(table, tokens, num_tokens)

    def take_copies(self, step_id: int) -> BlockCopies | None:
        """The copies that the next step begins with, once it is known who runs in it.

        What is offloaded can be found again when that step is confirmed.
        """
        if self._disk is not None:
            self._disk.save(may_copy=True)
        return self._tree.take_copies(step_id)

    @property
    def has_disk_tier(self) -> bool:
        return self._disk is not None

    @property
    def disk_outcomes(self) -> Mapping[str, int]:
        """Of blocks that were to be written to disk or read; empty: there is no such tier."""
        return {} if self._disk is None else self._disk.outcomes

    @property
    def has_unsaved(self) -> bool:
        """Something is cached that belongs on disk: a step may be planned for its copies alone."""
        return self._disk is not None and self._disk.has_unsaved

    def flush(self) -> None:
        """Has all that is cached, and worth it, written to disk, what was used last first. To be
        called when no sequence runs any more; `is_flushed` tells when it is done.
        """
        if self._disk is not None:
            self._disk.flush(self.hot_nodes())

    @property
    def is_flushed(self) -> bool:
        return self._disk is None or self._disk.is_flushed

    def read_ahead(
        self,
        tokens: memoryview | bytes,
        namespace: CacheNamespace,
        is_worth_it: Callable[[int, int], bool],
    ) -> PrefixRead | None:
        """Reads what is on disk of a sequence that waits, behind what is cached of it. `allocate`
        finds it once it is done.

        Args:
            is_worth_it: whether to read so many blocks after so many others.

        Returns:
            What to wait for; None if it is not known yet what is on disk.
        """
        assert self._disk is not None
        num_readable = (memoryview(tokens).nbytes // TOKEN_BYTES - 1) // self.block_size
        key = self._packed(tokens, 0, num_readable)
        match = self._tree.match(namespace, key)
        num_matched = len(match.blocks) + match.num_host_blocks
        return self._disk.read_ahead(namespace, key, num_matched, is_worth_it)

    def next_store_command(self) -> StoreCommand | None:
        """What the disk tier is to do; to be asked until it is None whenever something happened."""
        return None if self._disk is None else self._disk.next_command()

    def take_store_report(self, report: StoreReport) -> None:
        if self._disk is not None:
            self._disk.take(report)

    def confirm(self, step_id: int) -> None:
        """The steps up to `step_id` are done: nothing that they published or copied can fail."""
        self._tree.confirm(step_id)
        if self._disk is not None:
            self._disk.may_write = True

    def withdraw(self) -> None:
        """A step failed: what unconfirmed steps published or loaded leaves the cache, with all
        behind it, and what they offloaded.

        Tables that shared such a block hold tokens that were never computed. They, and all that had
        a part in the failed steps, are to be released and their sequences allocated anew; until
        then they are sealed, so that nothing of that kind gets into the cache.
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
        key = self._packed(tokens, 0, memoryview(tokens).nbytes // self._block_bytes)
        path = self._tree.path(namespace, key)
        if path and path[-1][1] == path[-1][0].num_blocks:
            self._pool.release(self._tree.discard(path[-1][0]))
        if self._disk is not None:
            self._disk.discard(None, namespace, key)

    def release(
        self,
        table: BlockTable,
        tokens: memoryview | bytes,
        num_valid_tokens: int,
        *,
        comes_back: bool = False,
    ) -> None:
        """Ends a table, once, because its sequence finished, was aborted or is preempted.

        The full blocks of tokens[:num_valid_tokens], the tokens whose KV has been computed, stay
        cached; the others become free unless another sequence shares them.

        Args:
            comes_back: what stays cached is worth a copy to the host, however few have used it.

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
            self._discard(table, tokens)
        table.node = None
        table.blocks = block_ids()
        self._device.evict_excess()

    def _discard(self, table: BlockTable, tokens: memoryview | bytes) -> None:
        """What remains of a failed sequence's prefix, after its table was released."""
        assert table.node is not None
        self._pool.release(self._tree.discard(table.node))
        if self._disk is not None:
            key = self._packed(tokens, 0, memoryview(tokens).nbytes // self._block_bytes)
            self._disk.discard(table.save, table.namespace, key)

    def _cache_full_blocks(
        self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int, step_id: int | None
    ) -> None:
        start, end = table.num_pinned_blocks, num_tokens // self.block_size
        if end <= start or table.sealed or not self.enable_prefix_caching:
            return
        key = self._packed(tokens, start, end)
        if end > len(table.blocks) or len(key) < (end - start) * self._block_bytes:
            raise ValueError(f"{num_tokens} tokens are more than the sequence has")
        assert table.node is not None
        table.node, taken = self._tree.insert(table.node, key, table.blocks[start:end], step_id)
        table.num_pinned_blocks = end
        self._pool.retain(taken)

    def _save_prefix(self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int) -> None:
        """Have the disk tier write what a sequence has computed. Copies no token ids of `bytes`."""
        if self._disk is None or num_tokens < self.block_size or table.sealed:
            return
        num_blocks = num_tokens // self.block_size
        if not isinstance(tokens, bytes):
            tokens = self._packed(tokens, 0, num_blocks)
        if table.save is None:
            table.save = PrefixSave(table.namespace, tokens, num_blocks)
        table.save.tokens, table.save.num_blocks = tokens, num_blocks
        self._disk.save_prefix(table.save)

    def _make_disk_transfers(self, num_blocks: int) -> DiskTransfers | None:
        host, residents = self._host, self._tree.residents
        if host is None or residents is None:
            return None  # what is read or written goes by way of the host
        return DiskTransfers(DiskIndex(num_blocks, self._block_bytes), host, residents, self._tree)

    def _packed(self, tokens: memoryview | bytes, start: int, end: int) -> bytes:
        """The packed ids of the blocks start … end - 1."""
        first, last = start * self._block_bytes, end * self._block_bytes
        if isinstance(tokens, bytes):
            return tokens[first:last]
        return bytes(memoryview(tokens).cast("B")[first:last])

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _check_live(self, table: BlockTable) -> None:
        if table not in self._live:
            raise RuntimeError("the block table has been released")
