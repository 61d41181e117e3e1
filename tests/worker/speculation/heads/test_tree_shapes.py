"""Tree shapes hold the most likely nodes, in depth-first order."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taco_worker.speculation.heads.tree_shapes import likeliest_shapes


@st.composite
def tables(draw: st.DrawFn) -> list[list[float]]:
    """Acceptance rates by depth and rank, descending along ranks."""
    num_ranks = draw(st.integers(1, 4))
    row = st.lists(st.floats(0.05, 0.95), min_size=num_ranks, max_size=num_ranks)
    return [sorted(row, reverse=True) for row in draw(st.lists(row, min_size=1, max_size=3))]


@given(tables(), st.integers(0, 20))
def test_shapes_hold_the_most_likely_nodes(chances: list[list[float]], max_nodes: int) -> None:
    shapes = likeliest_shapes(np.array(chances, np.float32), max_nodes)
    num_ranks = len(chances[0])
    ways = [
        path
        for length in range(1, len(chances) + 1)
        for path in itertools.product(range(num_ranks), repeat=length)
    ]
    chance_of = {
        path: float(np.prod([chances[depth][rank] for depth, rank in enumerate(path)]))
        for path in ways
    }
    best = sorted(chance_of.values(), reverse=True)
    assert len(shapes) == min(max_nodes, len(ways)) + 1
    for count, shape in enumerate(shapes):
        paths: list[tuple[int, ...]] = []
        for parent, rank in zip(shape.parents.tolist(), shape.ranks.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), rank))
        assert paths == sorted(set(paths))
        assert [len(path) - 1 for path in paths] == shape.depths.tolist()
        np.testing.assert_allclose(
            sorted((chance_of[path] for path in paths), reverse=True), best[:count], rtol=1e-4
        )
