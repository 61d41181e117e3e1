"""Collects hashes of the most recently used prefixes in the cache, for the registry record."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from taco_common.prefix_hashes import block_hashes, is_landmark, root_hash
from taco_proto.registry import MAX_PREFIXES
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import Node, Root

# Maximum new blocks that one round hashes, about 2 ms; the next round continues.
MAX_HASHED_BLOCKS = 2048
# Nodes and hashed blocks between two pauses, about 0.5 ms.
SLICE = 128
# Share of the hashes for ends of nodes, 0 to 1: there requests diverge, or continue later.
ENDS_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Hashes:
    """The hashes of one node of the radix tree.

    Attributes:
        start, end: depth of the node, in blocks.
        end_hash: hash of the prefix that ends with the node.
        landmarks: hashes of the prefixes inside the node whose lengths are landmarks.
    """

    start: int
    end: int
    end_hash: bytes
    landmarks: tuple[bytes, ...]


class HotPrefixes:
    """Hashes of the most recently used nodes of all radix trees.

    Nodes that the last round hashed are not hashed again: the cost of a round depends on the new
    nodes.

    Attributes:
        found: at most `MAX_PREFIXES` hashes, of the last finished round.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.found: frozenset[bytes] = frozenset()
        self._before: dict[Node, _Hashes] = {}
        self._now: dict[Node, _Hashes] = {}
        self._roots: dict[CacheNamespace, bytes] = {}
        self._budget = 0

    def collect(self, caches: Sequence[BlockManager]) -> Iterator[None]:
        """Runs a round in slices, between which the caches may change. Caches share equally."""
        self._before, self._now = self._now, {}
        self._roots.clear()
        self._budget = MAX_HASHED_BLOCKS
        found: set[bytes] = set()
        for cache in caches:
            room = MAX_PREFIXES // len(caches)
            nodes: list[_Hashes] = []
            for _ in self._hash(list(islice(cache.hot_nodes(), room)), cache.block_bytes, nodes):
                yield
            found |= _choose(nodes, room)
        self._before = {}
        self.found = frozenset(found)

    def _hash(self, nodes: list[Node], block_bytes: int, found: list[_Hashes]) -> Iterator[None]:
        num_done = 0
        for node in nodes:
            budget = self._budget
            hashes = self._hashes(node, block_bytes)
            if hashes is not None:
                found.append(hashes)
            num_done += 1 + budget - self._budget
            if num_done >= SLICE:
                num_done = 0
                yield

    def _hashes(self, node: Node, block_bytes: int) -> _Hashes | None:
        """None: the round has hashed its maximum, or the node was removed from the tree."""
        root, *path = _path_to(node)
        if not isinstance(root, Root):
            return None
        start, parent = 0, self._root_hash(root)
        for step in path:
            end = start + step.num_blocks
            hashes = self._now.get(step) or self._before.get(step)
            # A node that was split, cut or joined has another depth; one at the same depth has the
            # same tokens.
            if hashes is None or (hashes.start, hashes.end) != (start, end):
                if self._budget <= 0:
                    return None
                chain = block_hashes(parent, step.key, block_bytes)
                self._budget -= len(chain)
                landmarks = tuple(
                    chain[depth - start - 1]
                    for depth in range(start + 1, end)
                    if is_landmark(depth)
                )
                hashes = _Hashes(start, end, chain[-1], landmarks)
            self._now[step] = hashes
            start, parent = end, hashes.end_hash
        return self._now.get(node)

    def _root_hash(self, root: Root) -> bytes:
        namespace = root.namespace
        assert isinstance(namespace, CacheNamespace)
        found = self._roots.get(namespace)
        if found is None:
            found = root_hash(self.key, namespace.adapter, namespace.cache_salt)
            self._roots[namespace] = found
        return found


def _path_to(node: Node) -> list[Node]:
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path[::-1]


def _choose(nodes: list[_Hashes], room: int) -> set[bytes]:
    ends = [node.end_hash for node in nodes]
    landmarks = [landmark for node in nodes for landmark in node.landmarks]
    found = _first_distinct(ends, int(room * ENDS_SHARE))
    found |= _first_distinct((h for h in landmarks if h not in found), room - len(found))
    return found | _first_distinct((h for h in ends if h not in found), room - len(found))


def _first_distinct(hashes: Iterable[bytes], count: int) -> set[bytes]:
    return set(islice(dict.fromkeys(hashes), count))
