"""Which prefixes are cached: a radix tree whose edges are whole blocks of token ids.

The tree of SGLang's RadixAttention (Zheng et al. 2023, arXiv:2312.07104, section 3), block-aligned.
Token ids are compared as packed bytes, by value; no hash stands for them.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


class Node:
    """A run of blocks that continues its parent's.

    Attributes:
        parent: None for a root and for a node that was evicted.
        key: the packed token ids of `blocks`.
        children: by the packed token ids of their first block, in which siblings differ.
        lock_count: pins at this node or below it; only an unlocked node can be evicted.
        step_id: the step that fills the blocks, until it is known to have succeeded.
    """

    __slots__ = ("blocks", "children", "key", "lock_count", "parent", "step_id")

    def __init__(
        self, parent: "Node | None", key: bytes, blocks: list[int], step_id: int | None = None
    ) -> None:
        self.parent = parent
        self.key = memoryview(key)
        self.blocks = blocks
        self.children: dict[bytes, Node] = {}
        self.lock_count = 0
        self.step_id = step_id


class Root(Node):
    """The empty prefix of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Hashable) -> None:
        super().__init__(None, b"", [])
        self.namespace = namespace


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A cached prefix, valid until the tree changes.

    Attributes:
        node: where the prefix ends; None if the namespace caches nothing.
        num_node_blocks: how many of the node's blocks belong to the prefix.
        blocks: the prefix's blocks.
        num_evictable: how many of them an eviction could take as long as the match is not pinned.
    """

    namespace: Hashable
    node: Node | None
    num_node_blocks: int
    blocks: list[int]
    num_evictable: int


class RadixTree:
    """Cached prefixes by namespace, evicted in the order in which they were last unpinned.

    A pin locks a node and all its ancestors. Unlocked nodes stand in `_lru` in the order in which
    their last pin went. A pin goes from the bottom up, so a node always stands behind its
    descendants, and the first node of `_lru` is the leaf that was used least recently: eviction
    takes O(1) and needs no clock.
    """

    def __init__(self, block_bytes: int) -> None:
        """`block_bytes`: size of one block's packed token ids."""
        self.num_evictable = 0
        self._block_bytes = block_bytes
        self._roots: dict[Hashable, Root] = {}
        self._lru: OrderedDict[Node, None] = OrderedDict()
        self._unconfirmed: dict[int, list[Node]] = {}

    def match(self, namespace: Hashable, key: bytes) -> PrefixMatch:
        """The longest cached prefix of `key` in whole blocks; changes nothing."""
        block_bytes = self._block_bytes
        node: Node | None = self._roots.get(namespace)
        position = num_node_blocks = num_evictable = 0
        blocks: list[int] = []
        while node is not None and num_node_blocks == len(node.blocks):
            child = node.children.get(key[position : position + block_bytes])
            if child is None:
                break
            node = child
            num_node_blocks = self._num_common_blocks(node, key, position)
            position += num_node_blocks * block_bytes
            blocks += node.blocks[:num_node_blocks]
            if node.lock_count == 0:
                num_evictable += num_node_blocks
        return PrefixMatch(namespace, node, num_node_blocks, blocks, num_evictable)

    def pin(self, match: PrefixMatch) -> Node:
        """Locks a prefix that was just matched; returns the node that ends with it."""
        end = match.node
        if end is None:
            end = self._roots[match.namespace] = Root(match.namespace)
        elif match.num_node_blocks < len(end.blocks):
            end = self._split(end, match.num_node_blocks)
        node: Node | None = end
        while node is not None:
            self._lock(node)
            node = node.parent
        return end

    def insert(
        self, node: Node, key: bytes, blocks: list[int], step_id: int | None
    ) -> tuple[Node, list[int]]:
        """Continues a pinned prefix and moves its pin to the new end.

        What is cached already stays as it is, so that other owners' blocks remain in the tree.

        Args:
            node: the end of the pinned prefix.
            key: the packed token ids of `blocks`.
            step_id: the step that fills the blocks; None if they are filled.

        Returns:
            The node where the longer prefix ends, and those of `blocks` that the tree took.
        """
        position = 0
        while position < len(key):
            child = node.children.get(key[position : position + self._block_bytes])
            if child is None:
                leaf = self._add_leaf(
                    node, key[position:], blocks[position // self._block_bytes :], step_id
                )
                return leaf, leaf.blocks
            num_common = self._num_common_blocks(child, key, position)
            if num_common < len(child.blocks):
                child = self._split(child, num_common)
            self._lock(child)
            position += num_common * self._block_bytes
            node = child
        return node, []

    def unpin(self, node: Node) -> None:
        """Takes back one pin of the prefix that ends with `node`."""
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

    def evict(self, count: int) -> list[int]:
        """Removes `count` blocks, or all that can be, from the tails of the oldest leaves."""
        evicted: list[int] = []
        while len(evicted) < count and self._lru:
            leaf = next(iter(self._lru))
            missing = count - len(evicted)
            if missing < len(leaf.blocks):
                evicted += leaf.blocks[-missing:]
                del leaf.blocks[-missing:]
                # A view: a long leaf loses one block at a time and must not be copied each time.
                leaf.key = leaf.key[: -missing * self._block_bytes]
            else:
                evicted += leaf.blocks
                del self._lru[leaf]
                self._unlink(leaf)
                leaf.parent = None
        self.num_evictable -= len(evicted)
        return evicted

    def confirm(self, step_id: int) -> None:
        """The steps up to `step_id` have succeeded."""
        for done in [step for step in self._unconfirmed if step <= step_id]:
            for node in self._unconfirmed.pop(done):
                node.step_id = None

    def withdraw(self) -> set[Node]:
        """Removes what unconfirmed steps inserted, with all that continues it.

        Returns:
            The removed nodes, their parents as they were: a pin at a removed node is from now on a
            pin at its closest ancestor that is still in the tree.
        """
        removed: set[Node] = set()
        for nodes in self._unconfirmed.values():
            for node in nodes:
                was_evicted = node.parent is None
                if not was_evicted and node not in removed:
                    self._unlink(node)
                    self._collect_subtree(node, removed)
        self._unconfirmed.clear()
        return removed

    def _num_common_blocks(self, node: Node, key: bytes, position: int) -> int:
        """How many blocks of `node` equal those of `key` at `position`; the first is known to."""
        if key.startswith(node.key, position):
            return len(node.blocks)
        block_bytes = self._block_bytes
        equal = 1
        unequal = min(len(node.blocks), (len(key) - position) // block_bytes) + 1
        while unequal - equal > 1:
            middle = (equal + unequal) // 2
            start = equal * block_bytes
            if key.startswith(node.key[start : middle * block_bytes], position + start):
                equal = middle
            else:
                unequal = middle
        return equal

    def _lock(self, node: Node) -> None:
        if node.lock_count == 0:
            self._lru.pop(node, None)  # absent if it was just split off; roots are never there
            self.num_evictable -= len(node.blocks)
        node.lock_count += 1

    def _split(self, node: Node, count: int) -> Node:
        """Moves the first `count` blocks of `node` to a new parent, which the caller locks."""
        parent = node.parent
        assert parent is not None
        cut = count * self._block_bytes
        upper = Node(parent, bytes(node.key[:cut]), node.blocks[:count], node.step_id)
        upper.lock_count = node.lock_count
        parent.children[self._first_block(upper)] = upper
        node.parent = upper
        node.key = memoryview(bytes(node.key[cut:]))
        node.blocks = node.blocks[count:]
        upper.children[self._first_block(node)] = node
        if node.step_id is not None:
            self._unconfirmed[node.step_id].append(upper)
        return upper

    def _add_leaf(self, parent: Node, key: bytes, blocks: list[int], step_id: int | None) -> Node:
        leaf = Node(parent, key, blocks, step_id)
        leaf.lock_count = 1
        parent.children[self._first_block(leaf)] = leaf
        if step_id is not None:
            self._unconfirmed.setdefault(step_id, []).append(leaf)
        return leaf

    def _merge_with_ancestors(self, node: Node) -> None:
        """Joins the only children above `node`, chunks of one prefill for instance, into it.

        Equal lock counts say that no pin ends at an ancestor.
        """
        absorbed: list[Node] = []
        parent = node.parent
        while (
            parent is not None
            and parent.parent is not None
            and len(parent.children) == 1
            and parent.lock_count == node.lock_count
            and parent.step_id is None
            and node.step_id is None
        ):
            absorbed.insert(0, parent)
            parent = parent.parent
        if parent is None or not absorbed:
            return
        node.key = memoryview(b"".join([run.key for run in [*absorbed, node]]))
        node.blocks = [block for run in [*absorbed, node] for block in run.blocks]
        node.parent = parent
        parent.children[self._first_block(node)] = node
        for run in absorbed:
            self._lru.pop(run, None)

    def _first_block(self, node: Node) -> bytes:
        return bytes(node.key[: self._block_bytes])

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._first_block(node)]
        if isinstance(parent, Root):
            self._forget_if_empty(parent)

    def _forget_if_empty(self, root: Root) -> None:
        # Clients choose their cache_salt: an empty namespace must not stay.
        if root.lock_count == 0 and not root.children:
            del self._roots[root.namespace]

    def _collect_subtree(self, node: Node, removed: set[Node]) -> None:
        pending = [node]
        while pending:
            node = pending.pop()
            removed.add(node)
            pending += node.children.values()
            if node.lock_count == 0:
                del self._lru[node]
                self.num_evictable -= len(node.blocks)
