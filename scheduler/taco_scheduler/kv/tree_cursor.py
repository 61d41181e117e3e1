"""A cursor that walks down the radix tree along one prefix and resumes where it stopped."""

from collections.abc import Iterator

from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.radix_node import Node
from taco_scheduler.kv.radix_tree import RadixTree


class TreeCursor:
    """The node of a prefix that a walk reached.

    A later walk starts at this node, and again at the root if the node left the tree or was split.
    So the steps of a walk along a growing prefix do not grow with the prefix.
    """

    __slots__ = ("_node", "_num_common", "_num_withdrawals", "_parent", "_start")

    def __init__(self) -> None:
        self._node: Node | None = None
        self._parent: Node | None = None
        self._start = 0  # blocks of the prefix above the node
        self._num_common = 0  # blocks of the node that belong to the prefix
        self._num_withdrawals = 0

    def walk(
        self, tree: RadixTree, namespace: object, tokens: bytes, first: int, end: int
    ) -> Iterator[tuple[Node, int]]:
        """The cached blocks first … end - 1 of a prefix: each one's node, and its index there.

        The tree may lose nodes during the walk, but not gain or split them.

        Args:
            tokens: packed token ids of `end` blocks or more; earlier walks had the same beginning.
        """
        block_bytes = tree.block_bytes
        node, start, num_common = self._resume(tree, first)
        if node is None:
            node, start, num_common = tree.root(namespace), 0, 0
        while node is not None:
            size = node.num_blocks
            num_common = min(num_common, size)
            if num_common < min(size, end - start):
                position = start * block_bytes
                num_common = num_common_blocks(
                    tokens, position, node.key, block_bytes, num_known=num_common
                )
            num_common = min(num_common, end - start)
            self._node, self._parent, self._start = node, node.parent, start
            self._num_common, self._num_withdrawals = num_common, tree.num_withdrawals
            for i in range(max(0, first - start), num_common):
                yield node, i
            start += size
            if num_common < size or start >= end:
                return
            node = node.children.get(tokens[start * block_bytes : (start + 1) * block_bytes])
            num_common = 1

    def _resume(self, tree: RadixTree, first: int) -> tuple[Node | None, int, int]:
        """The node, start and common blocks of the last walk; None for the node if it is stale."""
        node = self._node
        if (
            node is None
            or node.parent is None  # a root, or it left the tree
            or node.parent is not self._parent  # it was split or merged
            or self._num_withdrawals != tree.num_withdrawals
            or first < self._start
        ):
            return None, 0, 0
        return node, self._start, self._num_common
