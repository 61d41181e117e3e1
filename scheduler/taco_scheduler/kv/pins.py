"""Prefixes that somebody asked to be kept on the device for a time."""

from collections import OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass

from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.node import Node
from taco_scheduler.kv.radix_tree import RadixTree


@dataclass(slots=True, eq=False)
class _Pin:
    node: Node
    num_blocks: int
    until: float


class Pins:
    """Locks prefixes in the radix tree, at most `max_blocks` blocks of them: the oldest pin gives
    way to a new one. A prefix that is pinned again counts as new.

    Attributes:
        num_blocks: pinned blocks; those of a prefix that is a part of another count twice.
    """

    def __init__(self, tree: RadixTree, max_blocks: int) -> None:
        self.num_blocks = 0
        self._tree = tree
        self._max_blocks = max_blocks
        self._pins: OrderedDict[tuple[CacheNamespace, bytes], _Pin] = OrderedDict()
        self._next_end = float("inf")  # no pin ends before

    def nodes(self) -> Iterator[Node]:
        """The ends of what is pinned, the newest first."""
        return (pin.node for pin in reversed(self._pins.values()))

    def add(self, namespace: CacheNamespace, key: bytes, until: float) -> None:
        """Pins what the device holds of a prefix, if that is not too much."""
        num_blocks = len(self._tree.match(namespace, key).blocks)
        key = key[: num_blocks * self._tree.block_bytes]
        old = self._pins.pop((namespace, key), None)
        if old is not None:
            until = max(until, old.until)
            self._end(old)
        if not 0 < num_blocks <= self._max_blocks:
            return
        while self.num_blocks + num_blocks > self._max_blocks:
            self.give_way()
        node = self._tree.pin(self._tree.match(namespace, key))
        self._pins[namespace, key] = _Pin(node, num_blocks, until)
        self.num_blocks += num_blocks
        self._next_end = min(self._next_end, until)

    def give_way(self) -> bool:
        """Ends the oldest pin; False if there is none."""
        if not self._pins:
            return False
        self._end(self._pins.popitem(last=False)[1])
        return True

    def expire(self, now: float) -> None:
        if now < self._next_end:
            return
        for name in [name for name, pin in self._pins.items() if pin.until <= now]:
            self._end(self._pins.pop(name))
        self._next_end = min((pin.until for pin in self._pins.values()), default=float("inf"))

    def note_removed(self, removed: Set[Node]) -> None:
        """Nodes left the tree although they were locked: their pins end."""
        for name in [name for name, pin in self._pins.items() if pin.node in removed]:
            pin = self._pins.pop(name)
            while pin.node in removed:
                assert pin.node.parent is not None
                pin.node = pin.node.parent
            self._end(pin)

    def _end(self, pin: _Pin) -> None:
        self._tree.unpin(pin.node)
        self.num_blocks -= pin.num_blocks
