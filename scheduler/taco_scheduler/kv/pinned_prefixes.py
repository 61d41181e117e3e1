"""Pinned prefixes: prefixes that clients keep in the cache for a time (TTL)."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass

from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import Node, PrefixMatch
from taco_scheduler.kv.radix_tree import RadixTree

_Name = tuple[CacheNamespace, bytes]


@dataclass(slots=True, eq=False)
class _Pin:
    node: Node
    num_blocks: int
    until: float
    owner: str


class PinnedPrefixes:
    """Locks prefixes in the radix tree, on the device.

    Limits keep one tenant from starving others. One owner may pin at most half of the pinnable
    blocks, unless owners are anonymous. Beyond that, its oldest pinned prefix is evicted for a new
    one. When all owners together exceed the limit, the oldest pinned prefix of the owner with the
    most blocks is evicted. A prefix that is pinned again counts as new. An evicted prefix goes to
    the host tier, if there is one.

    Attributes:
        num_blocks: pinned blocks; blocks of overlapping prefixes count twice.
    """

    def __init__(self, tree: RadixTree, max_blocks: int) -> None:
        self.num_blocks = 0
        self._tree = tree
        self._max_blocks = max_blocks
        self._pins: OrderedDict[_Name, _Pin] = OrderedDict()
        self._num_blocks_of: Counter[str] = Counter()
        self._next_end = float("inf")  # no pin expires before

    def nodes(self) -> Iterator[Node]:
        """The last nodes of the pinned prefixes, the newest first."""
        return (pin.node for pin in reversed(self._pins.values()))

    def add(self, namespace: CacheNamespace, key: bytes, until: float, owner: str) -> bool:
        """Pin the part of a prefix that is on the device.

        Returns:
            False if that is no whole block, or more than the owner may pin.
        """
        num_blocks = len(self._tree.match(namespace, key).blocks)
        key = key[: num_blocks * self._tree.block_bytes]
        name = namespace, key
        if name in self._pins:
            until = max(until, self._pins[name].until)
            self._unpin(name)
        most = self._max_blocks // 2 if owner else self._max_blocks
        if not 0 < num_blocks <= most:
            return False
        while self._num_blocks_of[owner] + num_blocks > most:
            self._unpin_oldest_of({owner})
        while self.num_blocks + num_blocks > self._max_blocks:
            most_held = max(self._num_blocks_of.values())
            self._unpin_oldest_of(
                {o for o, held in self._num_blocks_of.items() if held == most_held}
            )
        node = self._tree.pin(self._tree.match(namespace, key))
        self._tree.mark_as_used(node)
        self._pins[name] = _Pin(node, num_blocks, until, owner)
        self._num_blocks_of[owner] += num_blocks
        self.num_blocks += num_blocks
        self._next_end = min(self._next_end, until)
        return True

    def evict_for(self, num_blocks: int, needed: PrefixMatch | None) -> bool:
        """Unpin the oldest prefixes so that `num_blocks` more blocks are evictable.

        Prefixes whose last blocks others use stay: they would free nothing.

        Args:
            needed: a cached prefix whose blocks are no help; None: no prefix is.

        Returns:
            False, and nothing is unpinned, if unpinning every prefix would not be enough.
        """
        if num_blocks > self.num_blocks:
            return False
        num_pins = Counter(node for pin in self._pins.values() for node in pin.node.path_up())
        gains = _blocks_without_users(num_pins, needed)
        if gains.total() < num_blocks:
            return False
        names: list[_Name] = []
        for name, pin in self._pins.items():
            if num_blocks <= 0:
                break
            if not gains[pin.node]:
                continue
            names.append(name)
            for node in pin.node.path_up():
                num_pins[node] -= 1
                if not num_pins[node]:
                    num_blocks -= gains[node]
        for name in names:
            self._unpin(name)
        return True

    def expire(self, now: float) -> None:
        """Unpin the prefixes whose time has passed."""
        if now < self._next_end:
            return
        for name in [name for name, pin in self._pins.items() if pin.until <= now]:
            self._unpin(name)
        self._next_end = min((pin.until for pin in self._pins.values()), default=float("inf"))

    def note_removed(self, removed: Set[Node]) -> None:
        """Unpin the prefixes whose nodes a failed step removed from the tree."""
        for name in [name for name, pin in self._pins.items() if pin.node in removed]:
            pin = self._pins[name]
            while pin.node in removed:
                assert pin.node.parent is not None
                pin.node = pin.node.parent
            self._unpin(name)

    def _unpin_oldest_of(self, owners: Set[str]) -> None:
        self._unpin(next(name for name, pin in self._pins.items() if pin.owner in owners))

    def _unpin(self, name: _Name) -> None:
        pin = self._pins.pop(name)
        self._tree.unpin(pin.node)
        self.num_blocks -= pin.num_blocks
        self._num_blocks_of[pin.owner] -= pin.num_blocks
        if not self._num_blocks_of[pin.owner]:
            del self._num_blocks_of[pin.owner]


def _blocks_without_users(num_pins: Counter[Node], needed: PrefixMatch | None) -> Counter[Node]:
    """Of each node that nothing but its pins locks: its device blocks that are not `needed`."""
    num_blocks = Counter(
        {node: len(node.blocks) for node, count in num_pins.items() if node.lock_count == count}
    )
    if needed is not None and needed.node is not None:
        for node in needed.node.path_up():
            if node is needed.node:
                num_blocks[node] -= min(needed.num_node_blocks, num_blocks[node])
            else:
                del num_blocks[node]
    return num_blocks
