"""Optimal tree shapes when a candidate's acceptance rate depends on depth and rank alone."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.speculation.drafter import FloatArray


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Nodes in depth-first order, siblings by rank.

    Attributes:
        parents: int32 [num_nodes], -1 is the root.
        depths: int32 [num_nodes], 0 for children of the root.
        ranks: int32 [num_nodes], of the node among the candidates of its depth.
    """

    parents: IntArray
    depths: IntArray
    ranks: IntArray


def likeliest_shapes(chances: FloatArray, max_nodes: int) -> list[TreeShape]:
    """The shapes with the most expected accepted tokens, of 0, 1, ... max_nodes nodes.

    Greedily adding the node with the greatest path probability is optimal (Cai et al. 2024,
    "Medusa", appendix on sparse trees). The list ends early if there are fewer nodes.

    Args:
        chances: [num_depths, num_ranks], descending along ranks: the acceptance rate of a candidate
            whose parent is accepted.
    """
    paths = _likeliest_paths(chances, max_nodes)
    return [_shape(paths[:count]) for count in range(len(paths) + 1)]


def _likeliest_paths(chances: FloatArray, count: int) -> list[tuple[int, ...]]:
    """Ranks from the root to each node, most likely node first."""
    num_depths, num_ranks = chances.shape
    paths: list[tuple[int, ...]] = []
    # Candidates for the next node: each follows its parent and its more likely sibling.
    waiting: list[tuple[float, tuple[int, ...]]] = [(-float(chances[0, 0]), (0,))]
    while waiting and len(paths) < count:
        chance, path = heapq.heappop(waiting)
        paths.append(path)
        depth, rank = len(path) - 1, path[-1]
        if depth + 1 < num_depths:
            heapq.heappush(waiting, (chance * float(chances[depth + 1, 0]), (*path, 0)))
        if rank + 1 < num_ranks:
            sibling = chance / float(chances[depth, rank]) * float(chances[depth, rank + 1])
            heapq.heappush(waiting, (sibling, (*path[:-1], rank + 1)))
    return paths


def _shape(paths: Sequence[tuple[int, ...]]) -> TreeShape:
    ordered = sorted(paths)  # a path sorts after its prefixes
    index_of = {path: index for index, path in enumerate(ordered)}
    return TreeShape(
        np.array([index_of.get(path[:-1], -1) for path in ordered], dtype=np.int32),
        np.array([len(path) - 1 for path in ordered], dtype=np.int32),
        np.array([path[-1] for path in ordered], dtype=np.int32),
    )
