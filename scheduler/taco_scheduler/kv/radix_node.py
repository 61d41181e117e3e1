"""The nodes of the radix tree, and what is found on a way down from a root."""

from collections.abc import Hashable
from dataclasses import dataclass

from taco_scheduler.kv.block_ids import BlockIds, block_ids

NO_BLOCK = -1  # stands for a block that a tier does not hold


class Node:
    """A run of blocks that continues its parent's.

    Its first blocks are on the device; those behind them are in lower tiers only. What is locked is
    on the device, and so is all that stands above a block which is.

    Attributes:
        parent: None for a root and for a node that left the tree.
        key: the packed token ids of the run.
        blocks: the device blocks of the run's first blocks.
        num_below: how many blocks stand behind those.
        host_blocks: one for each block of the run, or NO_BLOCK; empty if the host holds none.
        children: by the packed token ids of their first block, in which siblings differ.
        lock_count: pins at this node or below it; only an unlocked node can be evicted.
        num_uses: how often it was locked, as far as that is counted.
        step_id: the step that fills the device blocks, until it is known to have succeeded.
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
        self.step_id = step_id

    @property
    def num_blocks(self) -> int:
        return len(self.blocks) + self.num_below


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
        node: where the prefix ends; None if the namespace caches nothing.
        num_node_blocks: how many of the node's blocks belong to the prefix.
        blocks: the device blocks of the prefix's first blocks.
        num_host_blocks: how many blocks that only the host holds follow them.
        num_evictable: how many of `blocks` an eviction could take as long as the match is not
            pinned.
    """

    namespace: Hashable
    node: Node | None
    num_node_blocks: int
    blocks: BlockIds
    num_host_blocks: int
    num_evictable: int


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What every tier holds of a sequence, valid until the cache changes.

    Attributes:
        match: the part that the radix tree knows.
        read_keys: keys of the blocks behind it that were read from disk.
    """

    match: PrefixMatch
    read_keys: list[bytes]

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
