import zlib
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_worker.speculation.drafter import DraftTrees, chains
from taco_worker.speculation.verify import (
    accept,
    are_chains,
    is_well_formed,
    node_depths,
    select_nodes,
)

Tree = list[tuple[int, int]]  # token and parent of each node


def after(path: tuple[int, ...]) -> int:
    """What the target says after some tokens."""
    return zlib.crc32(array("i", path).tobytes()) % 3


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


@given(st.lists(trees(), max_size=4))
def test_what_is_accepted_is_what_decoding_token_by_token_gives(rows: list[Tree]) -> None:
    chosen = []
    for number, tree in enumerate(rows):
        start = (number,)
        chosen.append(after(start))
        chosen += [after(start + path_of(tree, node)) for node in range(len(tree))]
    outcome = accept(pack(rows), np.array(chosen, dtype=np.int64))

    kept = iter(outcome.kept.tolist())
    for number, (tree, count) in enumerate(zip(rows, outcome.num_tokens.tolist(), strict=True)):
        tokens = [chosen[next(kept)] for _ in range(count)]
        path: tuple[int, ...] = (number,)
        for token in tokens:  # each is what the target says after all before it
            assert token == after(path)
            path += (token,)
        drafted = {path_of(tree, node) for node in range(len(tree))}
        assert path[1:] not in drafted, "a draft that was right was not accepted"
        assert len(tokens) == 1 or path[1:-1] in drafted
    assert next(kept, None) is None


@given(st.lists(trees(), max_size=4), st.randoms())
def test_some_nodes_of_trees(rows: list[Tree], random: st.DataObject) -> None:
    whole = pack(rows)
    kept_rows = []
    is_kept = []
    for tree in rows:
        kept: list[int] = []
        for node, (_, parent) in enumerate(tree):
            if (parent < 0 or parent in kept) and random.random() < 0.7:  # type: ignore[attr-defined]
                kept.append(node)
        is_kept += [node in kept for node in range(len(tree))]
        kept_rows.append([path_of(tree, node) for node in kept])
    some = select_nodes(whole, np.array(is_kept, dtype=np.bool_))
    ends = np.cumsum(some.num_nodes)
    for row, paths in enumerate(kept_rows):
        nodes = slice(ends[row] - some.num_nodes[row], ends[row])
        pairs = zip(some.token_ids[nodes].tolist(), some.parents[nodes].tolist(), strict=True)
        tree = list(pairs)
        assert [path_of(tree, node) for node in range(len(tree))] == paths
    assert some.classes.tolist() == np.flatnonzero(is_kept).tolist()


@given(st.lists(trees(), max_size=4))
def test_depths_and_chains(rows: list[Tree]) -> None:
    expected = [len(path_of(tree, node)) for tree in rows for node in range(len(tree))]
    assert node_depths(pack(rows)).tolist() == expected
    has_branches = any(parent != node - 1 for tree in rows for node, (_, parent) in enumerate(tree))
    assert are_chains(pack(rows)) != has_branches


def test_chains_are_trees() -> None:
    tokens = [np.array(row, dtype=np.int32) for row in ([4, 5], [], [6])]
    made = chains(tokens, [np.zeros_like(row) for row in tokens])
    assert made.num_nodes.tolist() == [2, 0, 1]
    assert made.parents.tolist() == [-1, 0, -1]
    assert are_chains(made)


@given(st.lists(trees(), max_size=4))
def test_trees_are_well_formed(rows: list[Tree]) -> None:
    whole = pack(rows)
    assert is_well_formed(whole, whole.num_nodes, 3, max(1, whole.classes.size))


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": [1, 3, 0]},
        {"token_ids": [1, -1, 0]},
        {"token_ids": [1, 2]},
        {"classes": [0, 0, 9]},
        {"classes": [-(2**31), 0, 0]},  # what becomes of NaN
        {"parents": [-1, 1, 0]},
        {"parents": [-2, 0, 0]},
        {"num_nodes": [4]},
        {"num_nodes": [-1]},
        {"num_nodes": [1, 2]},
    ],
)
def test_what_cannot_be_a_tree_is_found_out(changes: dict[str, list[int]]) -> None:
    tree = DraftTrees(
        *(np.array(c, dtype=np.int32) for c in ([3], [1, 2, 0], [-1, 0, 0], [0, 0, 1]))
    )
    three = np.array([3], dtype=np.int32)
    assert is_well_formed(tree, three, 3, 2)
    bad = replace(tree, **{name: np.array(c, dtype=np.int32) for name, c in changes.items()})
    assert not is_well_formed(bad, three, 3, 2)
