"""State snapshots: the recurrent states that a worker stores, and where the cache uses them."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Set

from taco_scheduler.kv.radix_node import Node


class StateSnapshots:
    """The snapshots 0 … num_snapshots - 1 of one worker.

    A snapshot is *free*, *pending* (one running sequence holds it) or *cached*: it belongs to one
    position in the radix tree, the end of a block, and holds the state after the tokens up to
    there. A node that a position belongs to lists it in `Node.snapshots`.

    When none is free, the cached snapshot is evicted that was used least recently (LRU), those at
    the ends of pinned prefixes last. Its KV blocks stay cached.

    A plan may read cached snapshots for joining sequences and write others. It must not write one
    that it reads: from `read` to `end_plan`, a snapshot is not evicted.
    """

    __slots__ = ("_free", "_nodes", "_num_ever_used", "_reads", "_unconfirmed", "num_snapshots")

    # Unused snapshots cost no memory: those from _num_ever_used on are free and in no list.

    def __init__(self, num_snapshots: int) -> None:
        self.num_snapshots = num_snapshots
        self._num_ever_used = 0
        self._free: list[int] = []
        self._nodes: OrderedDict[int, Node] = OrderedDict()  # cached, least recently used first
        self._unconfirmed: dict[int, int] = {}  # the step that writes a snapshot
        self._reads: set[int] = set()

    @property
    def num_used(self) -> int:
        """Pending and cached snapshots."""
        return self._num_ever_used - len(self._free)

    @property
    def num_pending(self) -> int:
        return self.num_used - len(self._nodes)

    def take(self, step_id: int, pinned_ends: Callable[[], Set[Node]] = frozenset) -> int | None:
        """Take a snapshot, which is pending then, for a step to write.

        Args:
            pinned_ends: the nodes at whose ends snapshots are evicted last.

        Returns:
            None if all snapshots are pending or read by the next plan.
        """
        if self._free:
            snapshot = self._free.pop()
        elif self._num_ever_used < self.num_snapshots:
            snapshot = self._num_ever_used
            self._num_ever_used += 1
        else:
            evicted = self._oldest(pinned_ends())
            if evicted is None:
                return None
            self._detach(evicted)
            snapshot = evicted
        self._unconfirmed[snapshot] = step_id
        return snapshot

    def overwrite(self, snapshot: int, step_id: int) -> None:
        """Record that a step writes a pending snapshot again."""
        self._unconfirmed[snapshot] = step_id

    def read(self, end: Node) -> int:
        """Use the snapshot at the end of a node, for a sequence that joins with the next plan."""
        snapshot = end.snapshots[end.num_blocks]
        self._nodes.move_to_end(snapshot)
        self._reads.add(snapshot)
        return snapshot

    def end_plan(self) -> None:
        """The next plan is complete: later plans may write what it reads."""
        self._reads.clear()

    def attach(self, end: Node, num_blocks: int, depth: int, snapshot: int) -> None:
        """Give a pending snapshot to a position in the tree.

        If the position has one already, the new snapshot is free.

        Args:
            end: last node of a prefix of `num_blocks` blocks.
            depth: the position, in blocks of this prefix.
        """
        node: Node | None = end
        while node is not None and num_blocks - node.num_blocks >= depth:
            num_blocks -= node.num_blocks
            node = node.parent
        assert node is not None
        index = depth - num_blocks + node.num_blocks
        if index in node.snapshots:
            self._nodes.move_to_end(node.snapshots[index])
            self.release(snapshot)
        else:
            node.snapshots[index] = snapshot
            self._nodes[snapshot] = node

    def release(self, snapshot: int) -> None:
        """Free a pending snapshot."""
        self._unconfirmed.pop(snapshot, None)
        self._free.append(snapshot)

    def free(self, node: Node, first: int = 0, last: int = sys.maxsize) -> None:
        """Free the snapshots of a node behind its first `first` blocks, up to its `last` block."""
        for index in [index for index in node.snapshots if first < index <= last]:
            snapshot = node.snapshots.pop(index)
            del self._nodes[snapshot]
            self.release(snapshot)

    def note_moved(self, node: Node) -> None:
        """Record that snapshots came to a node from another one: a node was split or merged."""
        for snapshot in node.snapshots.values():
            self._nodes[snapshot] = node  # keeps its place in the order of use

    def confirm(self, step_id: int) -> None:
        """The steps up to `step_id` have succeeded."""
        for snapshot in [s for s, writer in self._unconfirmed.items() if writer <= step_id]:
            del self._unconfirmed[snapshot]

    def withdraw(self) -> None:
        """Free the cached snapshots of unconfirmed steps, because a step failed.

        The sequences that hold pending ones release them.
        """
        for snapshot in [s for s in self._unconfirmed if s in self._nodes]:
            self._detach(snapshot)
            self.release(snapshot)
        self._unconfirmed.clear()

    def _oldest(self, pinned_ends: Set[Node]) -> int | None:
        """The cached snapshot to evict; None: the next plan reads all of them."""
        first = None
        for snapshot, node in self._nodes.items():
            if snapshot in self._reads:
                continue
            if node not in pinned_ends or node.snapshots.get(node.num_blocks) != snapshot:
                return snapshot
            first = snapshot if first is None else first
        return first

    def _detach(self, snapshot: int) -> None:
        """Take a cached snapshot away from its position."""
        node = self._nodes.pop(snapshot)
        index = next(index for index, other in node.snapshots.items() if other == snapshot)
        del node.snapshots[index]
