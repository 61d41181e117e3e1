"""Growing draft trees against a plain search of one tree at a time."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.heads import paths_of
from support.plans import ints
from taco_kernels.native.draft_trees import DraftTrees
from taco_worker.speculation.heads.draft_tree import NUM_CLASSES, Expansion, GrowingTrees

VOCAB = 9


def log_chances(seed: int, path: tuple[int, ...]) -> np.ndarray:
    """A random model: the probability of each next token after a path, by `seed`."""
    rng = np.random.default_rng([seed, *path])
    return np.log(rng.dirichlet(np.full(VOCAB, 0.3)) + 1e-9)


def likeliest(seed: int, path: tuple[int, ...], width: int) -> list[int]:
    return np.argsort(-log_chances(seed, path))[:width].tolist()


def searched(seed: int, max_nodes: int, width: int, depth: int) -> set[tuple[int, ...]]:
    """The tree by its definition."""
    chances: dict[tuple[int, ...], float] = {(): 0.0}
    level: list[tuple[int, ...]] = [()]
    for _ in range(depth):
        children = [(*path, token) for path in level for token in likeliest(seed, path, width)]
        for path in children:
            chances[path] = chances[path[:-1]] + log_chances(seed, path[:-1])[path[-1]]
        level = sorted(children, key=lambda path: -chances[path])[:width]
    del chances[()]
    return set(sorted(chances, key=lambda path: (-chances[path], len(path)))[:max_nodes])


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 14)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_trees_hold_the_likeliest_nodes(
    trees: list[tuple[int, int]], width: int, depth: int
) -> None:
    grown, num_levels = grow(trees, width, depth)
    rows = paths_of(grown)
    for (seed, max_nodes), row in zip(trees, rows, strict=True):
        assert set(row) == searched(seed, max_nodes, width, depth)
        for path, node_class in row.items():
            chance = math.exp(log_chances(seed, path[:-1])[path[-1]])
            assert abs(node_class - chance * NUM_CLASSES + 0.5) <= 0.51
            # More likely siblings are in the tree and come first.
            ranked = likeliest(seed, path[:-1], width)
            siblings = [other[-1] for other in row if other[:-1] == path[:-1]]
            assert siblings == ranked[: len(siblings)]
    assert num_levels <= depth


def grow(trees: list[tuple[int, int]], width: int, depth: int) -> tuple[DraftTrees, int]:
    """Trees as a drafter grows them, and the number of levels."""
    growing = GrowingTrees(ints([max_nodes for _, max_nodes in trees]), width)
    paths: list[list[tuple[int, ...]]] = [[()] for _ in trees]
    for level in range(depth):
        token_ids = [
            [likeliest(seed, path, width) for path in row]
            for (seed, _), row in zip(trees, paths, strict=True)
        ]
        values = [
            [log_chances(seed, path)[ids] for path, ids in zip(row, row_ids, strict=True)]
            for (seed, _), row, row_ids in zip(trees, paths, token_ids, strict=True)
        ]
        expansion: Expansion | None = growing.grow(
            np.array(token_ids, np.int32), np.array(values, np.float32)
        )
        if expansion is None:
            return growing.finish(), level + 1
        paths = [
            [(*row[place], token) for place, token in zip(places, tokens, strict=True)]
            for row, places, tokens in zip(
                paths, expansion.places.tolist(), expansion.token_ids.tolist(), strict=True
            )
        ]
    return growing.finish(), depth


def test_growth_ends_when_no_node_could_enter_the_tree() -> None:
    growing = GrowingTrees(ints([2, 1]), width=2)
    ids = np.array([[[4, 5]], [[6, 7]]], np.int32)
    flat = np.log(np.array([[[0.5, 0.5]], [[0.9, 0.1]]], np.float32))
    assert growing.grow(ids, flat) is None
    assert [set(row) for row in paths_of(growing.finish())] == [{(4,), (5,)}, {(6,)}]


def test_certain_nodes_keep_their_order() -> None:
    growing = GrowingTrees(ints([3]), width=1)
    for token in (3, 1, 2):
        growing.grow(np.array([[[token]]], np.int32), np.zeros((1, 1, 1), np.float32))
    assert list(paths_of(growing.finish())[0]) == [(3,), (3, 1), (3, 1, 2)]
