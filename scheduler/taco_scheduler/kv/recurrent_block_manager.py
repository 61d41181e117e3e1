"""Block manager of a recurrent model: a cached prefix ends where a state snapshot exists."""

from itertools import islice

from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.prefix_match import up_to_snapshot
from taco_scheduler.kv.radix_node import CachedPrefix, Node
from taco_scheduler.kv.sequence_snapshots import NO_SNAPSHOT, SequenceSnapshots
from taco_scheduler.kv.state_snapshots import StateSnapshots


class RecurrentBlockManager(BlockManager):
    """A block manager whose sequences have recurrent states in addition to KV.

    No KV block holds the state of its tokens. So a sequence continues a cached prefix only from a
    position whose state is in a snapshot. Snapshots belong to positions of the radix tree, and
    leave it with their blocks. A recurrent worker has no host and no disk tier.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_state_snapshots: int,
        *,
        max_cached_device_blocks: int | None = None,
        max_pinned_share: float = 0.5,
        log_hit_counts: bool = False,
    ) -> None:
        """See `BlockManager`.

        Args:
            num_state_snapshots: snapshots that the worker stores.
        """
        super().__init__(
            num_blocks,
            block_size,
            max_cached_device_blocks=max_cached_device_blocks,
            max_pinned_share=max_pinned_share,
            log_hit_counts=log_hit_counts,
        )
        self.snapshots = self._tree.snapshots = StateSnapshots(num_state_snapshots)

    def find(
        self, tokens: memoryview | bytes, namespace: CacheNamespace, *, read_cache: bool = True
    ) -> CachedPrefix:
        """The cached prefix that `allocate` would use; changes nothing."""
        match = super().find(tokens, namespace, read_cache=read_cache).match
        return CachedPrefix(up_to_snapshot(match), [], num_kv_blocks=len(match.blocks))

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
        """Make a sequence's block table; see `BlockManager`.

        The sequence's state will be saved where its tokens depart from those in the tree: other
        sequences with this prefix are likely to come.
        """
        found = found or self.find(tokens, namespace, read_cache=read_cache)
        table = super().allocate(
            tokens,
            num_tokens,
            namespace,
            read_cache=read_cache,
            num_spare_blocks=num_spare_blocks,
            found=found,
        )
        if table is None:
            return None
        table.states = SequenceSnapshots()
        if table.num_cached_tokens:
            assert table.node is not None
            table.states.joined_from = self.snapshots.read(table.node)
        branch = found.num_kv_blocks * self.block_size
        if branch > table.num_cached_tokens:
            table.states.positions.append(branch)
        return table

    def save_state(self, table: BlockTable, position: int, step_id: int) -> int | None:
        """The snapshot in which a step saves the state after the first `position` tokens.

        It is in the tree when the block that ends there is, or else when the table is released. The
        sequence keeps one such snapshot: a later one replaces it.

        Returns:
            None if no snapshot can be taken.
        """
        states = table.states
        assert states is not None
        if states.pending != NO_SNAPSHOT:
            self.snapshots.overwrite(states.pending, step_id)
        else:
            snapshot = self.snapshots.take(step_id, self._pinned_ends)
            if snapshot is None:
                return None
            states.pending = snapshot
        states.pending_position = position
        return states.pending

    def confirm(self, step_id: int) -> None:
        super().confirm(step_id)
        self.snapshots.confirm(step_id)

    def withdraw(self) -> None:
        super().withdraw()
        self.snapshots.withdraw()

    def discard(self, tokens: memoryview | bytes, namespace: CacheNamespace) -> None:
        """Remove a prefix from the cache, see `BlockManager`, and all its snapshots.

        Blocks that others use stay, but the states may be those of the failed sequence.
        """
        num_blocks = memoryview(tokens).nbytes // self.block_bytes
        for node, num_common in self._tree.path(namespace, self._packed(tokens, 0, num_blocks)):
            self.snapshots.free(node, last=num_common)
        super().discard(tokens, namespace)

    def release(
        self,
        table: BlockTable,
        tokens: memoryview | bytes,
        num_valid_tokens: int,
        *,
        comes_back: bool = False,
    ) -> None:
        """Release a table, see `BlockManager`. Its pending snapshot is cached with its block."""
        if table.is_discarded and table.node is not None:
            for node in table.node.path_up():
                self.snapshots.free(node)
        super().release(table, tokens, num_valid_tokens, comes_back=comes_back)
        states = table.states
        if states is not None and states.pending != NO_SNAPSHOT:
            self.snapshots.release(states.pending)
            states.pending = NO_SNAPSHOT

    def _pinned_ends(self) -> set[Node]:
        """The ends of the newest pinned prefixes: pins keep half of the snapshots at most."""
        return set(islice(self._pins.nodes(), self.snapshots.num_snapshots // 2))

    def _cache_full_blocks(
        self, table: BlockTable, tokens: memoryview | bytes, num_tokens: int, step_id: int | None
    ) -> None:
        super()._cache_full_blocks(table, tokens, num_tokens, step_id)
        states = table.states
        if states is None or states.pending == NO_SNAPSHOT or table.sealed:
            return
        depth = states.pending_position // self.block_size
        if depth <= table.num_pinned_blocks:
            assert table.node is not None
            self.snapshots.attach(table.node, table.num_pinned_blocks, depth, states.pending)
            states.pending = NO_SNAPSHOT
