"""Which drafts of a step are accepted, once the target has chosen a token behind each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.sampling.columns import Array
from taco_worker.speculation.drafter import DraftTrees


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the trees of a step came to; a row may have no tree, that is only a root.

    Attributes:
        kept: of the roots and nodes of all rows, row after row, each row's accepted path from its
            root: what was chosen behind these is the sequence's own.
        num_tokens: int32 [num_rows], tokens of each path, which is as many as the row gets: the
            accepted drafts and the bonus token.
    """

    kept: IntArray
    num_tokens: IntArray


def accept(trees: DraftTrees, chosen: Array) -> Outcome:
    """Walk down each tree for as long as what was chosen behind a node is one of its children.

    What is chosen at a node is a sample of the target given the path to it, with the random number
    of its position, so what comes out is what decoding token by token would have given, whatever
    the drafts were.

    Args:
        chosen: [sum(num_nodes + 1)], behind each row's root and nodes.
    """
    kept: list[int] = []
    num_tokens: list[int] = []
    tokens, parents = trees.token_ids.tolist(), trees.parents.tolist()
    behind = chosen.tolist()
    first_node = first_output = 0
    for size in trees.num_nodes.tolist():
        path = [first_output]
        at = -1  # the root
        for node in range(size):
            # Depth first: the children of a node come before anything that follows its subtree.
            is_child = parents[first_node + node] == at
            if is_child and tokens[first_node + node] == behind[path[-1]]:
                at = node
                path.append(first_output + 1 + node)
        kept += path
        num_tokens.append(len(path))
        first_node += size
        first_output += size + 1
    return Outcome(np.array(kept, dtype=np.int32), np.array(num_tokens, dtype=np.int32))


def is_well_formed(
    trees: DraftTrees, max_nodes: IntArray, vocab_size: int, num_classes: int
) -> bool:
    """Whether these can be trees: no larger than they may be, with tokens that there are, and each
    node behind its parent."""
    columns = (trees.token_ids, trees.parents, trees.classes)
    if trees.num_nodes.shape != max_nodes.shape or (trees.num_nodes < 0).any():
        return False
    total = int(trees.num_nodes.sum())
    if (trees.num_nodes > max_nodes).any() or any(column.size != total for column in columns):
        return False
    places = np.arange(total) - np.repeat(np.cumsum(trees.num_nodes), trees.num_nodes)
    places += np.repeat(trees.num_nodes, trees.num_nodes)
    return not total or bool(
        (trees.token_ids.min() >= 0 and trees.token_ids.max() < vocab_size)
        and (trees.classes.min() >= 0 and trees.classes.max() < num_classes)
        and ((trees.parents >= -1) & (trees.parents < places)).all()
    )


def node_depths(trees: DraftTrees) -> IntArray:
    """int32 [sum(num_nodes)], 1 for the children of a root."""
    return depths_below(global_parents(trees))


def depths_below(parents: IntArray) -> IntArray:
    """The same, of parents as `global_parents` gives them."""
    depths = np.ones(parents.size, dtype=np.int32)
    above = parents
    while (below := above >= 0).any():
        depths += below
        above = np.where(below, parents[above], -1)
    return depths


def global_parents(trees: DraftTrees) -> IntArray:
    """Each node's parent among all nodes of all trees; -1 is the root of its own."""
    ends = np.cumsum(trees.num_nodes, dtype=np.int32)
    firsts = np.repeat(ends - trees.num_nodes, trees.num_nodes)
    return np.where(trees.parents < 0, np.int32(-1), trees.parents + firsts)


def are_chains(trees: DraftTrees) -> bool:
    """No tree has a branch."""
    starts = np.cumsum(trees.num_nodes) - trees.num_nodes
    expected = np.arange(trees.parents.size) - np.repeat(starts, trees.num_nodes) - 1
    return bool((trees.parents == expected).all())


def select_nodes(trees: DraftTrees, is_kept: Array) -> DraftTrees:
    """The trees of some nodes; with a node its parent is kept."""
    rows = np.repeat(np.arange(trees.num_nodes.size), trees.num_nodes)
    num_nodes = np.bincount(rows[is_kept], minlength=trees.num_nodes.size).astype(np.int32)
    # Where a kept node stands among the kept ones of its tree.
    places = np.cumsum(is_kept) - 1
    first_places = np.concatenate([[0], np.cumsum(num_nodes)])[:-1]
    above = global_parents(trees)[is_kept]
    parents = np.where(above < 0, -1, places[above] - first_places[rows[is_kept]])
    return DraftTrees(
        num_nodes,
        trees.token_ids[is_kept],
        parents.astype(np.int32),
        trees.classes[is_kept],
    )
