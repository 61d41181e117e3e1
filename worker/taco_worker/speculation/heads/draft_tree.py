"""Trees that grow level by level below the likeliest nodes (EAGLE-2, Li et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import IntArray
from taco_worker.speculation.drafter import FloatArray, no_drafts

BoolArray = npt.NDArray[np.bool_]
LongArray = npt.NDArray[np.int64]

# A node's own probability falls into one of so many classes of equal width.
NUM_CLASSES = 20
# A child must be less likely than its parent even where rounding makes them equal.
_DEPTH_PENALTY = 1e-4


@dataclass(frozen=True, slots=True)
class Expansion:
    """The nodes of a level whose children come next; one row a tree, the likeliest first.

    Attributes:
        token_ids: int32 [num_rows, width].
        places: int64 [num_rows, width], the place of each one's parent in the expansion before.
    """

    token_ids: IntArray
    places: LongArray


class GrowingTrees:
    """Trees of a number of sequences that grow in step.

    At each level the `width` likeliest nodes get children. In the end the likeliest nodes of all
    levels make a tree: none of them is without its parent, which is likelier.
    """

    def __init__(self, max_nodes: IntArray, width: int) -> None:
        """max_nodes: [num_rows], at least 1 each."""
        self._max_nodes = max_nodes
        self._width = width
        num_rows = max_nodes.size
        self._token_ids = np.zeros((num_rows, 0), dtype=np.int32)
        self._parents = np.zeros((num_rows, 0), dtype=np.int64)
        self._scores = np.zeros((num_rows, 0))  # logarithms of chances from the root on
        self._classes = np.zeros((num_rows, 0), dtype=np.int32)
        # Nodes that were expanded last: the root, at first.
        self._expanded = np.full((num_rows, 1), -1, dtype=np.int64)
        self._expanded_scores = np.zeros((num_rows, 1))

    def grow(self, token_ids: IntArray, log_chances: FloatArray) -> Expansion | None:
        """Children of the nodes that were expanded last, the likeliest first.

        Args:
            token_ids, log_chances: [num_rows, number of those nodes, children of each].

        Returns:
            What is to be expanded next; None: no further node would get into any tree.
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
        """The likeliest nodes as trees, depth first."""
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
        """Whether a child of the nodes to expand could be among a row's likeliest nodes."""
        num_nodes = self._scores.shape[1]
        descending = -np.sort(-self._scores, axis=1)
        last = np.minimum(self._max_nodes, num_nodes) - 1
        worst = np.take_along_axis(descending, last[:, None], axis=1)[:, 0]
        return bool(((self._max_nodes > num_nodes) | (self._expanded_scores[:, 0] > worst)).any())


def _depth_first(parents: LongArray, is_in: BoolArray) -> LongArray:
    """Where each node stands when trees are laid out depth first.

    Args:
        parents: [num_rows, num_nodes] of nodes that stand behind their parents and their likelier
            siblings; -1 is the root.
        is_in: [num_rows, num_nodes], nodes that count; a parent does where its child does.
    """
    num_rows, num_nodes = parents.shape
    rows = np.arange(num_rows)
    # The last column is the root's, which -1 points to.
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
