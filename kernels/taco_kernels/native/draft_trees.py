"""Trees of draft tokens: their columns, validation and acceptance (csrc/drafts/draft_trees.h)."""

from ctypes import Structure, byref, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taco_kernels.library import library_keeping_gil

IntArray = npt.NDArray[np.int32]
_INT32 = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class DraftTrees:
    """One tree of draft tokens per row; its root is the sequence's last token.

    Nodes are in depth-first order, the likeliest sibling first: a node's first child follows it
    directly, and the first path is the likeliest chain.

    Attributes:
        num_nodes: int32 [num_rows], without the root.
        token_ids: int32 [sum(num_nodes)].
        parents: int32 [sum(num_nodes)], index of the parent in the same tree; -1 is the root.
        classes: int32 [sum(num_nodes)], evidence class of a node, below the number of the drafter's
            `priors`. The acceptance rate of each class is measured.
    """

    num_nodes: IntArray
    token_ids: IntArray
    parents: IntArray
    classes: IntArray

    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        return self.num_nodes, self.token_ids, self.parents, self.classes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted paths of a step's trees; a row may have only a root.

    Attributes:
        kept: indices into the roots and nodes of all rows: each row's accepted path from its root.
            The tokens sampled after these are the sequence's next tokens.
        num_tokens: int32 [num_rows], length of each path and number of the row's new tokens: the
            accepted drafts and the bonus token.
    """

    kept: IntArray
    num_tokens: IntArray


class TreesView(Structure):
    """Pointers to columns, which must be int32, contiguous, and outlive this object.

    `slots` may be null where only the trees matter.
    """

    _fields_ = (
        ("num_rows", c_int64),
        ("slots", c_void_p),
        ("num_nodes", c_void_p),
        ("token_ids", c_void_p),
        ("parents", c_void_p),
        ("classes", c_void_p),
    )


def are_columns(*columns: npt.NDArray[np.generic]) -> bool:
    """Whether C++ can read the columns: int32, one dimension, contiguous."""
    for column in columns:  # no generator expression: runs every step
        if column.dtype != _INT32 or column.ndim != 1 or not column.flags.c_contiguous:
            return False
    return True


def view(trees: DraftTrees, slots: IntArray | None = None) -> TreesView:
    """A view of columns that are known to be int32 and contiguous."""
    return TreesView(
        trees.num_nodes.size,
        None if slots is None else slots.ctypes.data,
        trees.num_nodes.ctypes.data,
        trees.token_ids.ctypes.data,
        trees.parents.ctypes.data,
        trees.classes.ctypes.data,
    )


def are_trees(trees: DraftTrees, max_nodes: IntArray, vocab_size: int, num_classes: int) -> bool:
    """Whether the columns are well-formed trees: at most `max_nodes` nodes per row, tokens and
    classes in range, each node after its parent.

    Raises:
        KernelLibraryError: the library cannot be loaded.
    """
    size = trees.token_ids.size
    if not are_columns(*trees.columns(), max_nodes) or trees.num_nodes.size != max_nodes.size:
        return False
    if trees.parents.size != size or trees.classes.size != size:
        return False
    trees_view, limits = view(trees), max_nodes.ctypes.data
    return bool(
        library_keeping_gil().taco_are_draft_trees(
            byref(trees_view), size, limits, vocab_size, num_classes
        )
    )


def accept(trees: DraftTrees, chosen: npt.NDArray[np.integer[Any]]) -> Accepted:
    """Walk down each tree while the token sampled after a node is one of its children.

    The token at a node is sampled from the target given the path to it, with the random number of
    its position. So the result equals decoding token by token, whatever the drafts were.

    Args:
        trees: well formed.
        chosen: [sum(num_nodes + 1)], tokens sampled after each row's root and nodes.

    Raises:
        KernelLibraryError: the library cannot be loaded.
        ValueError: `chosen` has another shape.
    """
    count = trees.num_nodes.size + trees.token_ids.size
    if chosen.shape != (count,):
        raise ValueError(f"{chosen.size} tokens were sampled after {count} roots and nodes")
    chosen = np.ascontiguousarray(chosen, dtype=np.int64)
    kept = np.empty(count, dtype=np.int32)
    num_tokens = np.empty(trees.num_nodes.size, dtype=np.int32)
    total = library_keeping_gil().taco_accept_drafts(
        byref(view(trees)), chosen.ctypes.data, kept.ctypes.data, num_tokens.ctypes.data
    )
    return Accepted(kept[:total], num_tokens)
