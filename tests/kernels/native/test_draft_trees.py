import zlib
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.packed_trees import Tree, pack, path_of, trees
from taco_kernels.native.draft_trees import DraftTrees, are_trees
from taco_kernels.native.draft_verification import accept
from taco_worker.speculation.drafter import chains


def after(path: tuple[int, ...]) -> int:
    """The target's next token after some tokens."""
    return zlib.crc32(array("i", path).tobytes()) % 3


@given(st.lists(trees(), max_size=4))
def test_accepted_tokens_equal_decoding_token_by_token(rows: list[Tree]) -> None:
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


def test_chains_are_trees() -> None:
    tokens = [np.array(row, dtype=np.int32) for row in ([4, 5], [], [6])]
    made = chains(tokens, [np.zeros_like(row) for row in tokens])
    assert made.num_nodes.tolist() == [2, 0, 1]
    assert made.parents.tolist() == [-1, 0, -1]


@given(st.lists(trees(), max_size=4))
def test_trees_are_well_formed(rows: list[Tree]) -> None:
    whole = pack(rows)
    assert are_trees(whole, whole.num_nodes, 3, max(1, whole.classes.size))


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
    assert are_trees(tree, three, 3, 2)
    bad = replace(tree, **{name: np.array(c, dtype=np.int32) for name, c in changes.items()})
    assert not are_trees(bad, three, 3, 2)


def test_what_is_chosen_must_be_as_many_as_roots_and_nodes() -> None:
    tree = pack([[(1, -1)]])
    with pytest.raises(ValueError, match="3 tokens were sampled after 2 roots and nodes"):
        accept(tree, np.zeros(3, dtype=np.int64))
