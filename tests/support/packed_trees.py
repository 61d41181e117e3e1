"""Small trees of draft tokens, and as columns."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from taco_kernels.native.draft_trees import DraftTrees

Tree = list[tuple[int, int]]  # token and parent of each node


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Depth first, siblings with different tokens."""
    nodes: Tree = []

    def grow(parent: int, depth: int) -> None:
        if depth == 4 or len(nodes) > 12:
            return
        for token in draw(st.lists(st.integers(0, 2), max_size=3, unique=True)):
            nodes.append((token, parent))
            grow(len(nodes) - 1, depth + 1)

    grow(-1, 0)
    return nodes


def pack(rows: list[Tree]) -> DraftTrees:
    nodes = [node for row in rows for node in row]
    return DraftTrees(
        np.array([len(row) for row in rows], dtype=np.int32),
        np.array([token for token, _ in nodes], dtype=np.int32),
        np.array([parent for _, parent in nodes], dtype=np.int32),
        np.arange(len(nodes), dtype=np.int32),
    )


def path_of(tree: Tree, node: int) -> tuple[int, ...]:
    token, parent = tree[node]
    return (token,) if parent < 0 else (*path_of(tree, parent), token)
