"""The prefix cache: a radix tree whose edges are whole blocks of token ids.

The tree of SGLang's RadixAttention (Zheng et al. 2023, arXiv:2312.07104, section 3), block-aligned.
Token ids are compared as packed bytes, by value, without hashes.
"""

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterator

from taco_proto.steps import BlockCopies
from taco_scheduler.kv.block_ids import BlockIds, block_ids
from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.host_offload import HostOffload
from taco_scheduler.kv.host_transfers import HostTransfers
from taco_scheduler.kv.prefix_match import match_prefix, path_of
from taco_scheduler.kv.radix_node import Node, PrefixMatch, Root
from taco_scheduler.kv.state_snapshots import StateSnapshots

NOT_SENT = sys.maxsize  # in place of a step id: the loads are not sent with a step yet


class RadixTree:
    """Cached prefixes by namespace, evicted in order of last use (LRU).

    A block that the device evicts goes to the host tier, if there is one. A block that no tier
    holds leaves the tree, with its descendants.

    A pin locks a node and all its ancestors. `_lru` lists the unlocked nodes in the order of their
    last unpin. An unpin unlocks a node before its ancestors, so a node comes behind its descendants
    in this list. The first node of `_lru` is the least recently used leaf: eviction takes O(1) and
    needs no clock.

    Attributes:
        num_evictable: device blocks of unlocked nodes.
        num_withdrawals: calls of `withdraw` so far.
        host_cache: the host tier's part of the tree; None if there is no host tier.
        snapshots: the state snapshots at positions of the tree.
    """

    def __init__(
        self, block_bytes: int, host: HostTransfers | None = None, offload_min_uses: int = 1
    ) -> None:
        """`block_bytes`: size of one block's packed token ids."""
        self.num_evictable = 0
        self.num_withdrawals = 0
        self.block_bytes = block_bytes
        self.snapshots = StateSnapshots(0)
        self._host = host
        self.host_cache = HostOffload(host, offload_min_uses, self._cut) if host else None
        self._num_counted_uses = offload_min_uses
        self._roots: dict[Hashable, Root] = {}
        self._lru: OrderedDict[Node, None] = OrderedDict()
        self._unconfirmed: dict[int, list[Node]] = {}

    def match(self, namespace: Hashable, key: bytes, max_blocks: int | None = None) -> PrefixMatch:
        """The longest cached prefix of `key`, in whole blocks; changes nothing.

        Args:
            max_blocks: longest prefix to return; None: no limit.
        """
        end = len(key) if max_blocks is None else max_blocks * self.block_bytes
        root = self._roots.get(namespace)
        return match_prefix(namespace, root, key, end, self.block_bytes, self._host)

    def pin(self, match: PrefixMatch) -> Node:
        """Lock a prefix that was just matched; returns the node at its end.

        If the match has host blocks, `load` must follow.
        """
        end = match.node
        if end is None:
            end = self._roots[match.namespace] = Root(match.namespace)
        elif match.num_node_blocks < end.num_blocks:
            end = self._split(end, match.num_node_blocks)
        node: Node | None = end
        while node is not None:
            if node.num_below and node.blocks:
                self._split(node, len(node.blocks))
            self._lock(node)
            node = node.parent
        return end

    def load(self, end: Node, blocks: BlockIds) -> None:
        """Plan copies of a pinned prefix's host blocks to device blocks.

        The device blocks are unconfirmed until the step with the copies has succeeded.

        Args:
            end: last node of the prefix.
            blocks: a device block for each block that only the host holds.
        """
        assert self._host is not None
        node = end
        while blocks:
            num_before = len(blocks) - node.num_below
            self._host.load(node.host_blocks, blocks[num_before:])
            self._fill(node, blocks[num_before:], NOT_SENT)
            blocks = blocks[:num_before]
            assert node.parent is not None
            node = node.parent

    def load_behind(self, end: Node, key: bytes, blocks: BlockIds, host_blocks: list[int]) -> Node:
        """Continue a pinned prefix with host blocks that were read from disk, and load them.

        Returns:
            The new end of the prefix.
        """
        assert self._host is not None
        assert self.host_cache is not None
        node, _ = self.insert(end, key, blocks, NOT_SENT)
        self._host.load(host_blocks, blocks)
        self.host_cache.attach(node, host_blocks)
        return node

    def path(self, namespace: Hashable, key: bytes) -> list[tuple[Node, int]]:
        """The nodes along the cached part of a prefix, with the blocks of each in the prefix."""
        return path_of(self._roots.get(namespace), key, self.block_bytes)

    def root(self, namespace: Hashable) -> Root | None:
        """The root of a namespace; None if nothing is cached for it."""
        return self._roots.get(namespace)

    def unlocked_nodes(self) -> Iterator[Node]:
        """Unlocked nodes on the device, most recently used first; then those only on the host."""
        yield from reversed(self._lru)
        if self.host_cache is not None:
            yield from reversed(self.host_cache.offloaded)

    def insert(
        self, node: Node, key: bytes, blocks: BlockIds, step_id: int | None
    ) -> tuple[Node, BlockIds]:
        """Continue a pinned prefix and move its pin to the new end.

        Where the device has a block already, the tree keeps that one. A block that only the host
        has gets the new device block.

        Args:
            node: the end of the pinned prefix.
            key: the packed token ids of `blocks`.
            step_id: the step that fills the blocks; None: they are filled.

        Returns:
            The new end of the prefix, and those of `blocks` that the tree keeps.
        """
        block_bytes = self.block_bytes
        position = 0
        taken = block_ids()
        while position < len(key):
            child = node.children.get(key[position : position + block_bytes])
            if child is None:
                first = position // block_bytes
                node = self._add_leaf(node, key[position:], blocks[first:], step_id)
                return node, taken + node.blocks
            num_common = self._num_common_blocks(child, key, position)
            if num_common < child.num_blocks:
                child = self._split(child, num_common)
            if child.num_below and child.blocks:
                child = self._split(child, len(child.blocks))
            self._lock(child)
            first = position // block_bytes
            position += child.num_blocks * block_bytes
            if child.num_below:
                taken += blocks[first : position // block_bytes]
                self._fill(child, blocks[first : position // block_bytes], step_id)
            node = child
        return node, taken

    def unpin(self, node: Node) -> None:
        """Remove one pin of the prefix that ends with `node`."""
        ancestor: Node | None = node
        while ancestor is not None:
            ancestor.lock_count -= 1
            if ancestor.lock_count == 0:
                if isinstance(ancestor, Root):
                    self._forget_if_empty(ancestor)
                else:
                    self._lru[ancestor] = None
                    self.num_evictable += len(ancestor.blocks)
            ancestor = ancestor.parent
        self._merge_with_ancestors(node)

    def mark_as_used(self, node: Node) -> None:
        """Give a prefix enough uses to be copied to the host on eviction."""
        ancestor: Node | None = node
        while ancestor is not None:
            ancestor.num_uses = self._num_counted_uses
            ancestor = ancestor.parent

    def evict(self, count: int) -> BlockIds:
        """Evict `count` blocks, or all evictable ones, from the tails of the oldest leaves."""
        evicted = block_ids()
        while len(evicted) < count and self._lru:
            leaf = next(iter(self._lru))
            first = max(0, len(leaf.blocks) - (count - len(evicted)))
            evicted += leaf.blocks[first:]
            if self.host_cache is not None:
                self.host_cache.offload(leaf, first)
            else:
                del leaf.blocks[first:]
                self._cut(leaf, first)
            if first == 0:
                del self._lru[leaf]
        self.num_evictable -= len(evicted)
        return evicted

    def discard(self, end: Node) -> BlockIds:
        """Remove the prefix that ends with `end`, from its end up to where a pin or another cached
        prefix needs it.

        Returns:
            The device blocks of the removed nodes.
        """
        discarded = block_ids()
        node = end
        while node.parent is not None and node.lock_count == 0 and not node.children:
            parent = node.parent
            if node.blocks:
                del self._lru[node]
                self.num_evictable -= len(node.blocks)
                discarded += node.blocks
                node.blocks = block_ids()
            self._cut(node, 0)
            node = parent
        return discarded

    def take_copies(self, step_id: int) -> BlockCopies | None:
        """The copies planned since the last call; the step `step_id` begins with them."""
        if self._host is None:
            return None
        loaded = self._unconfirmed.pop(NOT_SENT, None)
        if loaded is not None:
            for node in loaded:
                if node.step_id == NOT_SENT:
                    node.step_id = step_id
            self._unconfirmed.setdefault(step_id, []).extend(loaded)
        return self._host.take_copies(step_id)

    def confirm(self, step_id: int) -> None:
        """The steps up to `step_id` have succeeded."""
        for done in [step for step in self._unconfirmed if step <= step_id]:
            for node in self._unconfirmed.pop(done):
                if node.step_id == done:  # else a later step fills it again
                    node.step_id = None
        if self._host is not None:
            self._host.confirm(step_id)

    def withdraw(self) -> set[Node]:
        """Remove the nodes that unconfirmed steps inserted or loaded, with their descendants.

        Their copies to the host are removed, too.

        Returns:
            The removed nodes, which keep their parents. A pin at a removed node becomes a pin at
            its closest ancestor in the tree.
        """
        self.num_withdrawals += 1
        removed: set[Node] = set()
        for step_id, nodes in self._unconfirmed.items():
            for node in nodes:
                is_in_tree = node.parent is not None and node not in removed
                if is_in_tree and node.step_id == step_id:
                    self._unlink(node)
                    self._collect_subtree(node, removed)
        self._unconfirmed.clear()
        if self._host is not None and self.host_cache is not None:
            self._host.withdraw()
            for node in removed:
                self._host.release(node.host_blocks)
            self.host_cache.drop_unfilled(self._roots.values())
        return removed

    def _cut(self, node: Node, num_kept: int) -> None:
        """Shorten a node to its first blocks; its descendants leave the tree.

        The device blocks of the node are among the kept ones.
        """
        if self._host is not None and self.host_cache is not None:
            below: set[Node] = set()
            for child in node.children.values():
                self._collect_subtree(child, below)
            for removed in below:
                self._host.release(removed.host_blocks)
                removed.parent = None
            node.children.clear()
            self._host.release(node.host_blocks[num_kept:])
            del node.host_blocks[num_kept:]
            node.num_below = num_kept - len(node.blocks)
            if num_kept == 0:
                self.host_cache.forget(node)
            elif node.num_below == 0:
                self.host_cache.offloaded.pop(node, None)
        if node.snapshots:
            self.snapshots.free(node, num_kept)
        if num_kept == 0:
            self._unlink(node)
            node.parent = None
        # A view: a long leaf that loses one block at a time is not copied each time.
        node.key = node.key[: num_kept * self.block_bytes]

    def _num_common_blocks(self, node: Node, key: bytes, position: int) -> int:
        """Blocks of `node` that equal those of `key` at `position`; the first one does."""
        return num_common_blocks(key, position, node.key, self.block_bytes, num_known=1)

    def _lock(self, node: Node) -> None:
        if node.lock_count == 0:
            self._lru.pop(node, None)  # absent if it was just split off, or is a root
            self.num_evictable -= len(node.blocks)
            if node.num_below and self.host_cache is not None:
                self.host_cache.offloaded.pop(node, None)
        node.lock_count += 1
        if node.num_uses < self._num_counted_uses:
            node.num_uses += 1

    def _fill(self, node: Node, blocks: BlockIds, step_id: int | None) -> None:
        """Give a locked node, whose blocks only the host holds, its device blocks."""
        node.blocks = blocks
        node.num_below = 0
        node.step_id = step_id
        assert self.host_cache is not None
        self.host_cache.note_duplicates(node)
        if step_id is not None:
            self._unconfirmed.setdefault(step_id, []).append(node)

    def _split(self, node: Node, count: int) -> Node:
        """Move the first `count` blocks of `node` to a new parent, which the caller locks."""
        upper = node.split(count, self.block_bytes)
        if not node.blocks:
            self._lru.pop(node, None)
        if self.host_cache is not None:
            self.host_cache.note_split(upper, node)
        if upper.snapshots:
            self.snapshots.note_moved(upper)
        if node.step_id is not None:
            self._unconfirmed[node.step_id].append(upper)
        return upper

    def _add_leaf(self, parent: Node, key: bytes, blocks: BlockIds, step_id: int | None) -> Node:
        leaf = Node(parent, key, blocks, step_id)
        leaf.lock_count = leaf.num_uses = 1
        parent.children[self._first_block(leaf)] = leaf
        if step_id is not None:
            self._unconfirmed.setdefault(step_id, []).append(leaf)
        return leaf

    def _merge_with_ancestors(self, node: Node) -> None:
        """Merge ancestors with a single child into `node`, such as the chunks of one prefill.

        Equal lock counts mean that no pin ends at these ancestors.
        """
        absorbed: list[Node] = []
        parent = node.parent
        while (
            parent is not None
            and parent.parent is not None
            and len(parent.children) == 1
            and parent.lock_count == node.lock_count
            and parent.num_uses == node.num_uses
            and parent.step_id is None
            and node.step_id is None
        ):
            absorbed.insert(0, parent)
            parent = parent.parent
        if parent is None or not absorbed:
            return
        if self.host_cache is not None:
            node.host_blocks = self.host_cache.join([*absorbed, node])
        node.absorb(absorbed, self.block_bytes)
        for run in absorbed:
            self._lru.pop(run, None)
        if node.snapshots:
            self.snapshots.note_moved(node)

    def _first_block(self, node: Node) -> bytes:
        return bytes(node.key[: self.block_bytes])

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._first_block(node)]
        if isinstance(parent, Root):
            self._forget_if_empty(parent)

    def _forget_if_empty(self, root: Root) -> None:
        # Clients choose cache_salt: an empty namespace must not remain.
        if root.lock_count == 0 and not root.children:
            del self._roots[root.namespace]

    def _collect_subtree(self, node: Node, removed: set[Node]) -> None:
        pending = [node]
        while pending:
            node = pending.pop()
            removed.add(node)
            pending += node.children.values()
            if node.snapshots:
                self.snapshots.free(node)
            if self.host_cache is not None:
                self.host_cache.forget(node)
            if node.lock_count == 0 and node.blocks:
                del self._lru[node]
                self.num_evictable -= len(node.blocks)
