"""Trees of draft tokens: their columns and validation (csrc/drafts/draft_trees.h)."""

from ctypes import Structure, byref, c_int64, c_void_p
from dataclasses import dataclass

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
