"""Collects hashes of the most recently used prefixes in the cache, for the registry record."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from taco_common.prefix_hashes import block_hashes, is_landmark, root_hash
from taco_proto.registry import MAX_PREFIXES
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import Node, Root

# A round ends with the node that brings its new blocks to this number; the next round continues.
MAX_HASHED_BLOCKS = 2048
# Most nodes and hashed blocks between two pauses, about 0.5 ms.
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
        self._num_since_pause = 0

    def collect(self, caches: Sequence[BlockManager]) -> Iterator[None]:
        """Runs a round in slices, between which the caches may change. Caches share equally."""
        self._before, self._now = self._now, {}
        self._roots.clear()
        self._budget, self._num_since_pause = MAX_HASHED_BLOCKS, 0
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
        for node in nodes:
            hashes = yield from self._hashes(node, block_bytes)
            if hashes is not None:
                found.append(hashes)
            yield from self._note_work(1)

    def _hashes(self, node: Node, block_bytes: int) -> Generator[None, None, _Hashes | None]:
        """None: the round has hashed its maximum, or the node was removed from the tree."""
        while True:
            root, *path = reversed([*node.path_up()])
            if not isinstance(root, Root):
                return None
            start, parent = 0, self._root_hash(root)
            for step in path:
                hashes = self._known(step, start)
                if hashes is None:
                    break
                self._now[step] = hashes
                start, parent = hashes.end, hashes.end_hash
            else:
                return self._now.get(node)
            if self._budget <= 0:
                return None
            # The tree may change in the pauses. What was hashed then belongs to no node.
            self._now[step] = yield from self._hash_node(step, start, parent, block_bytes)

    def _known(self, node: Node, start: int) -> _Hashes | None:
        """The hashes of a node that begins at a depth; None: not hashed yet.

        A node that was split, cut or joined has another depth, and one at the same depth has the
        same tokens.
        """
        hashes = self._now.get(node) or self._before.get(node)
        if hashes is None or (hashes.start, hashes.end) != (start, start + node.num_blocks):
            return None
        return hashes

    def _hash_node(
        self, node: Node, start: int, parent: bytes, block_bytes: int
    ) -> Generator[None, None, _Hashes]:
        key = node.key
        chain: list[bytes] = []
        while len(chain) * block_bytes < len(key):
            first, count = len(chain), SLICE - self._num_since_pause
            part = key[first * block_bytes : (first + count) * block_bytes]
            chain += block_hashes(chain[-1] if chain else parent, part, block_bytes)
            yield from self._note_work(len(chain) - first)
        self._budget -= len(chain)
        landmarks = tuple(
            chain[depth - start - 1]
            for depth in range(start + 1, start + len(chain))
            if is_landmark(depth)
        )
        return _Hashes(start, start + len(chain), chain[-1], landmarks)

    def _note_work(self, amount: int) -> Iterator[None]:
        self._num_since_pause += amount
        if self._num_since_pause >= SLICE:
            self._num_since_pause = 0
            yield

    def _root_hash(self, root: Root) -> bytes:
        namespace = root.namespace
        assert isinstance(namespace, CacheNamespace)
        found = self._roots.get(namespace)
        if found is None:
            found = root_hash(self.key, namespace.adapter, namespace.cache_salt)
            self._roots[namespace] = found
        return found


def _choose(nodes: list[_Hashes], room: int) -> set[bytes]:
    ends = [node.end_hash for node in nodes]
    landmarks = [landmark for node in nodes for landmark in node.landmarks]
    found = _first_distinct(ends, int(room * ENDS_SHARE))
    found |= _first_distinct((h for h in landmarks if h not in found), room - len(found))
    return found | _first_distinct((h for h in ends if h not in found), room - len(found))


def _first_distinct(hashes: Iterable[bytes], count: int) -> set[bytes]:
    return set(islice(dict.fromkeys(hashes), count))
