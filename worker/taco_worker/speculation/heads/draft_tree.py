"""Draft trees that grow level by level below the most likely nodes (EAGLE-2, Li et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import IntArray
from taco_worker.speculation.drafter import FloatArray, no_drafts

BoolArray = npt.NDArray[np.bool_]
LongArray = npt.NDArray[np.int64]

# Number of classes, of equal width, for a node's own probability.
NUM_CLASSES = 20
# Keeps a child less likely than its parent despite rounding.
_DEPTH_PENALTY = 1e-4


@dataclass(frozen=True, slots=True)
class Expansion:
    """The nodes of a level to expand next; one row per tree, most likely node first.

    Attributes:
        token_ids: int32 [num_rows, width].
        places: int64 [num_rows, width], the index of each node's parent in the last expansion.
    """

    token_ids: IntArray
    places: LongArray


class GrowingTrees:
    """Draft trees of several sequences that grow together.

    At each level the `width` most likely nodes get children. At the end the most likely nodes of
    all levels form the tree. Each node's parent is among them, because it is more likely.
    """

    def __init__(self, max_nodes: IntArray, width: int) -> None:
        """max_nodes: [num_rows], at least 1 each."""
        self._max_nodes = max_nodes
        self._width = width
        num_rows = max_nodes.size
        self._token_ids = np.zeros((num_rows, 0), dtype=np.int32)
        self._parents = np.zeros((num_rows, 0), dtype=np.int64)
        self._scores = np.zeros((num_rows, 0))  # log probabilities of the paths from the root
        self._classes = np.zeros((num_rows, 0), dtype=np.int32)
        # The nodes expanded last; at first the root.
        self._expanded = np.full((num_rows, 1), -1, dtype=np.int64)
        self._expanded_scores = np.zeros((num_rows, 1))

    def grow(self, token_ids: IntArray, log_chances: FloatArray) -> Expansion | None:
        """Add children to the nodes expanded last, most likely first.

        Args:
            token_ids, log_chances: [num_rows, number of those nodes, children of each].

        Returns:
            The nodes to expand next; None if no further node would enter any tree.
        """
        num_rows, _, num_children = token_ids.shape
        first_node = self._token_ids.shape[1]
        scores = self._expanded_scores[:, :, None] + log_chances - _DEPTH_PENALTY
        scores = scores.reshape(num_rows, -1)
        classes = (np.exp(log_chances) * NUM_CLASSES).astype(np.int32).clip(0, NUM_CLASSES - 1)
        parents = np.repeat(self._expanded, num_children, axis=1)
        self._token_ids = np.append(self._token_ids, token_ids.reshape(num_rows, -1), axis=1)
        self._parents = np.append(self._parents, parents, axis=1)
        self._scores = np.append(self._scores, scores, axis=1)
        self._classes = np.append(self._classes, classes.reshape(num_rows, -1), axis=1)

        best = np.argsort(-scores, axis=1, kind="stable")[:, : self._width]
        self._expanded = first_node + best
        self._expanded_scores = np.take_along_axis(scores, best, axis=1)
        if not self._may_grow():
            return None
        new_ids = np.take_along_axis(self._token_ids, self._expanded, axis=1)
        return Expansion(new_ids, best // num_children)

    def finish(self) -> DraftTrees:
        """The most likely nodes as trees, in depth-first order."""
        num_rows = self._max_nodes.size
        count = min(int(self._max_nodes.max(initial=0)), self._scores.shape[1])
        if not num_rows or not count:
            return no_drafts(num_rows)
        order = np.argsort(-self._scores, axis=1, kind="stable")[:, :count]
        sizes = np.minimum(self._max_nodes, count).astype(np.int32)
        is_in = np.arange(count) < sizes[:, None]
        rank_of = np.zeros_like(self._parents)
        np.put_along_axis(rank_of, order, np.arange(count)[None], axis=1)
        parents = np.take_along_axis(self._parents, order, axis=1)
        parents = np.where(parents < 0, -1, np.take_along_axis(rank_of, parents.clip(0), axis=1))
        places = _depth_first(parents, is_in)
        rows, ranks = np.nonzero(is_in)
        starts = np.cumsum(sizes) - sizes
        by_place = np.empty(rows.size, dtype=np.int64)
        by_place[starts[rows] + places[rows, ranks]] = np.arange(rows.size)
        rows, ranks = rows[by_place], ranks[by_place]
        nodes = order[rows, ranks]
        above = parents[rows, ranks]
        return DraftTrees(
            num_nodes=sizes,
            token_ids=self._token_ids[rows, nodes],
            parents=np.where(above < 0, -1, places[rows, above]).astype(np.int32),
            classes=self._classes[rows, nodes],
        )

    def _may_grow(self) -> bool:
        """Whether a child of the nodes to expand could be among a row's most likely nodes."""
        num_nodes = self._scores.shape[1]
        descending = -np.sort(-self._scores, axis=1)
        last = np.minimum(self._max_nodes, num_nodes) - 1
        worst = np.take_along_axis(descending, last[:, None], axis=1)[:, 0]
        return bool(((self._max_nodes > num_nodes) | (self._expanded_scores[:, 0] > worst)).any())


def _depth_first(parents: LongArray, is_in: BoolArray) -> LongArray:
    """The index of each node in depth-first order.

    Args:
        parents: [num_rows, num_nodes]; parents and more likely siblings come first. -1 is the root.
        is_in: [num_rows, num_nodes], the nodes that count. If a node counts, its parent does.
    """
    num_rows, num_nodes = parents.shape
    rows = np.arange(num_rows)
    # The last column is the root's: -1 indexes it.
    sizes = np.append(is_in, np.zeros((num_rows, 1)), axis=1).astype(np.int64)
    for node in range(num_nodes - 1, -1, -1):
        sizes[rows, parents[:, node]] += sizes[:, node]
    places = np.zeros((num_rows, num_nodes), dtype=np.int64)
    next_place = np.zeros((num_rows, num_nodes + 1), dtype=np.int64)
    for node in range(num_nodes):
        above = parents[:, node]
        places[:, node] = next_place[rows, above]
        next_place[:, node] = places[:, node] + 1
        next_place[rows, above] += sizes[:, node]
    return places
