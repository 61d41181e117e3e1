"""Nodes of the radix tree, and the result of a prefix match."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from taco_scheduler.kv.block_ids import BlockIds, block_ids

NO_BLOCK = -1  # in place of a block number: the tier does not hold the block


class Node:
    """A run of blocks that continues its parent's run.

    The first blocks of the run are on the device, the others only in the host tier. The blocks of a
    locked node are on the device, and so are those of all ancestors of a block on the device.

    Attributes:
        parent: None for a root, and for a node that left the tree.
        key: packed token ids of the run.
        blocks: device blocks of the run's first part.
        num_below: blocks of the run that are only in the host tier.
        host_blocks: one for each block of the run, or `NO_BLOCK`; empty if the host holds none.
        children: by the packed token ids of their first block, in which siblings differ.
        lock_count: pins at this node or its descendants; only an unlocked node can be evicted.
        num_uses: how often it was locked, counted up to `offload_min_uses`.
        snapshots: state snapshots at ends of its blocks; keyed by the blocks of the run up to
            there, from 1. Empty if the worker is not recurrent.
        step_id: the step that fills the device blocks; None once it has succeeded.
    """

    __slots__ = (
        "blocks",
        "children",
        "host_blocks",
        "key",
        "lock_count",
        "num_below",
        "num_uses",
        "parent",
        "snapshots",
        "step_id",
    )

    def __init__(
        self, parent: "Node | None", key: bytes, blocks: BlockIds, step_id: int | None = None
    ) -> None:
        self.parent = parent
        self.key = memoryview(key)
        self.blocks = blocks
        self.num_below = 0
        self.host_blocks: list[int] = []
        self.children: dict[bytes, Node] = {}
        self.lock_count = 0
        self.num_uses = 0
        self.snapshots: dict[int, int] = {}
        self.step_id = step_id

    @property
    def num_blocks(self) -> int:
        return len(self.blocks) + self.num_below

    def path_up(self) -> Iterator["Node"]:
        """This node and its ancestors, the root last."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def split(self, count: int, block_bytes: int) -> "Node":
        """Move the first `count` blocks to a new parent; returns that parent."""
        parent = self.parent
        assert parent is not None
        cut = count * block_bytes
        upper = Node(parent, bytes(self.key[:cut]), self.blocks[:count], self.step_id)
        upper.num_below = count - len(upper.blocks)
        upper.host_blocks = self.host_blocks[:count]
        upper.lock_count = self.lock_count
        upper.num_uses = self.num_uses
        parent.children[bytes(upper.key[:block_bytes])] = upper
        self.parent = upper
        self.key = memoryview(bytes(self.key[cut:]))
        self.blocks = self.blocks[count:]
        self.num_below -= upper.num_below
        self.host_blocks = self.host_blocks[count:]
        if self.snapshots:
            upper.snapshots = {i: s for i, s in self.snapshots.items() if i <= count}
            self.snapshots = {i - count: s for i, s in self.snapshots.items() if i > count}
        upper.children[bytes(self.key[:block_bytes])] = self
        return upper

    def absorb(self, ancestors: "list[Node]", block_bytes: int) -> None:
        """Prepend the runs of ancestors, in their order; these leave the tree.

        Each of them has one child, the next one. Host blocks are not merged.
        """
        runs = [*ancestors, self]
        parent = runs[0].parent
        assert parent is not None
        snapshots: dict[int, int] = {}
        blocks = block_ids()
        for run in runs:
            if run.snapshots:
                snapshots |= {len(blocks) + i: s for i, s in run.snapshots.items()}
            blocks += run.blocks
        self.key = memoryview(b"".join([run.key for run in runs]))
        self.blocks = blocks
        self.snapshots = snapshots
        self.parent = parent
        parent.children[bytes(self.key[:block_bytes])] = self
        for run in ancestors:
            run.parent = None


class Root(Node):
    """The empty prefix of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Hashable) -> None:
        super().__init__(None, b"", block_ids())
        self.namespace = namespace


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A cached prefix, valid until the tree changes.

    Attributes:
        node: where the prefix ends; None if the namespace has no cached block.
        num_node_blocks: blocks of this node that belong to the prefix.
        blocks: device blocks of the prefix's first part.
        num_host_blocks: blocks behind these that only the host holds.
        num_evictable: how many of `blocks` an eviction could take before the match is pinned.
    """

    namespace: Hashable
    node: Node | None
    num_node_blocks: int
    blocks: BlockIds
    num_host_blocks: int
    num_evictable: int


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The cached prefix of a sequence in all tiers, valid until the cache changes.

    Attributes:
        match: the part in the radix tree.
        read_keys: keys of the blocks behind it that were read from disk.
        num_kv_blocks: with a recurrent model, cached blocks of the sequence's tokens, including
            those behind the last state snapshot, which are not in `match`.
    """

    match: PrefixMatch
    read_keys: list[bytes]
    num_kv_blocks: int = 0

    @property
    def num_blocks(self) -> int:
        return len(self.match.blocks) + self.match.num_host_blocks + len(self.read_keys)

    @property
    def node(self) -> Node | None:
        """The node whose end is the end of the prefix; None if no pin ends there yet."""
        node = self.match.node
        if node is None or self.read_keys or self.match.num_node_blocks < node.num_blocks:
            return None
        return node
