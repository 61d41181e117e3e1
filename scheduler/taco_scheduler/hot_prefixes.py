"""What gateways are told of the prefix caches: hashes of the prefixes that were used last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from taco_proto.prefix_hashes import block_hashes, is_landmark, root_hash
from taco_proto.registry import MAX_PREFIXES
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.node import Node, Root

# A round hashes no more new blocks than this and goes on in the next one: some 2 ms.
MAX_HASHED_BLOCKS = 2048
# Of the hashes, those of whole nodes get so much first: there requests part, or go on later.
ENDS_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Hashes:
    """Of one node: the depths between which it stands, in blocks; the hash of the prefix that ends
    with it, and those of the prefixes within it at whose lengths there is a landmark.
    """

    start: int
    end: int
    end_hash: bytes
    landmarks: tuple[bytes, ...]


class HotPrefixes:
    """Hashes of the hottest nodes of all radix trees together.

    What was hashed in the round before is not hashed again, so that a round costs what has become
    hot since then.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._before: dict[Node, _Hashes] = {}
        self._now: dict[Node, _Hashes] = {}
        self._budget = 0

    def collect(self, caches: Sequence[BlockManager]) -> frozenset[bytes]:
        """At most `MAX_PREFIXES` hashes; each cache gets as many."""
        self._before, self._now = self._now, {}
        self._budget = MAX_HASHED_BLOCKS
        found: set[bytes] = set()
        for cache in caches:  # none without workers
            found |= self._hashes_of(cache, MAX_PREFIXES // len(caches))
        self._before = {}
        return frozenset(found)

    def _hashes_of(self, cache: BlockManager, room: int) -> set[bytes]:
        hot = (self._hashes(end, cache.block_bytes) for end in islice(cache.hot_nodes(), room))
        nodes = [node for node in hot if node is not None]
        ends = [node.end_hash for node in nodes]
        landmarks = [landmark for node in nodes for landmark in node.landmarks]
        found = _first_distinct(ends, int(room * ENDS_SHARE))
        found |= _first_distinct((h for h in landmarks if h not in found), room - len(found))
        return found | _first_distinct((h for h in ends if h not in found), room - len(found))

    def _hashes(self, node: Node, block_bytes: int) -> _Hashes | None:
        """None: there is too much to hash for this round."""
        root, *path = _path_to(node)
        assert isinstance(root, Root)
        namespace = root.namespace
        assert isinstance(namespace, CacheNamespace)
        start, parent = 0, root_hash(self.key, namespace.adapter, namespace.cache_salt)
        for step in path:
            end = start + step.num_blocks
            hashes = self._now.get(step) or self._before.get(step)
            # A node that was split, cut or joined stands elsewhere than before.
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
        return self._now[node]


def _path_to(node: Node) -> list[Node]:
    path = [node]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path[::-1]


def _first_distinct(hashes: Iterable[bytes], count: int) -> set[bytes]:
    return set(islice(dict.fromkeys(hashes), count))
