"""Pending prefixes: prompts at a replica whose blocks its prefix cache may not hold yet.

The router counts them as cached, so that requests with one prefix go to one replica.
"""

from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.state.sequence import Sequence


class PendingPrefixes:
    """A radix tree of the tokens of waiting and running sequences, in whole blocks.

    To add, remove or look up a sequence compares its tokens once as memory, and visits one node for
    each place where prompts differ.
    """

    def __init__(self, block_bytes: int, block_size: int, *, is_recurrent: bool = False) -> None:
        """
        Args:
            block_bytes: size of the packed token ids of one block of `block_size` tokens.
            is_recurrent: the worker saves states only where prompts end and where they differ.
        """
        self._is_recurrent = is_recurrent
        self._block_bytes = block_bytes
        self._block_size = block_size
        self._roots: dict[CacheNamespace, _Run] = {}
        # Bytes of each sequence in the tree: the beginning of its packed tokens, which does not
        # change when more tokens come. A copy would be as large as the prompt.
        self._sizes: dict[Sequence, int] = {}

    def add(self, sequence: Sequence) -> None:
        """Add a sequence that waits here now."""
        self.remove(sequence)
        key = sequence.pack()
        size = len(key) // self._block_bytes * self._block_bytes
        if not size:
            return
        self._sizes[sequence] = size
        node = self._roots.setdefault(sequence.request.namespace, _Run(b""))
        node.num_sequences += 1
        position = 0
        while position < size:
            child = self._child(node, key, position)
            if child is None:
                child = _Run(key[position:size])
                node.children[key[position : position + self._block_bytes]] = child
            num_bytes = self._num_common_bytes(child, key, position)
            if num_bytes < len(child.key):
                child = self._split(node, child, num_bytes)
            child.num_sequences += 1
            position += num_bytes
            node = child

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence; nothing happens if it was never added."""
        size = self._sizes.pop(sequence, None)
        if size is None:
            return
        key = sequence.packed
        namespace = sequence.request.namespace
        node = self._roots[namespace]
        node.num_sequences -= 1
        if not node.num_sequences:
            del self._roots[namespace]
            return
        position = 0
        while position < size:
            child = self._child(node, key, position)
            assert child is not None
            child.num_sequences -= 1
            if not child.num_sequences:
                del node.children[key[position : position + self._block_bytes]]
                return
            position += len(child.key)
            node = child

    def num_common_tokens(self, sequence: Sequence) -> int:
        """The longest prefix, in tokens of whole blocks, that a sequence shares with one here.

        At least one token of the sequence is left to compute. With a recurrent model, the prefix
        ends where the state will be saved.
        """
        key = sequence.pack()
        num_readable = (len(sequence.tokens) - 1) // self._block_size
        node = self._roots.get(sequence.request.namespace)
        position = 0
        while node is not None and position < len(key):
            child = self._child(node, key, position)
            if child is None:
                break
            num_bytes = self._num_common_bytes(child, key, position)
            is_whole = num_bytes == len(child.key)
            position += num_bytes if is_whole or not self._is_recurrent else 0
            node = child if is_whole else None
        return min(position // self._block_bytes, num_readable) * self._block_size

    def _child(self, node: "_Run", key: bytes, position: int) -> "_Run | None":
        return node.children.get(key[position : position + self._block_bytes])

    def _num_common_bytes(self, node: "_Run", key: bytes, position: int) -> int:
        size = self._block_bytes
        return num_common_blocks(key, position, node.key, size, num_known=1) * size

    def _split(self, parent: "_Run", node: "_Run", num_bytes: int) -> "_Run":
        """Move the first bytes of `node` into a new node above it; returns that node."""
        upper = _Run(node.key[:num_bytes])
        upper.num_sequences = node.num_sequences
        node.key = node.key[num_bytes:]
        upper.children[node.key[: self._block_bytes]] = node
        parent.children[upper.key[: self._block_bytes]] = upper
        return upper


class _Run:
    """A run of blocks that continues its parent's.

    Attributes:
        key: their packed token ids.
        children: by the packed token ids of their first block.
        num_sequences: sequences that have these blocks.
    """

    __slots__ = ("children", "key", "num_sequences")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.children: dict[bytes, _Run] = {}
        self.num_sequences = 0
