"""Trees of draft tokens: their columns, and how C++ is shown them (csrc/drafts/draft_trees.h)."""

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
    """A tree of draft tokens for each of some sequences; its root is the sequence's last token.

    The nodes of a tree stand depth first, of siblings the likeliest first: a node's first child
    stands right behind it, and the first path is the likeliest chain.

    Attributes:
        num_nodes: int32 [num_rows], the root not counted.
        token_ids: int32 [sum(num_nodes)].
        parents: int32 [sum(num_nodes)], a node's parent among its tree's nodes; -1 is the root.
        classes: int32 [sum(num_nodes)], the kind of evidence for a node, below the drafter's
            number of `priors`: how often nodes of a class are accepted is measured.
    """

    num_nodes: IntArray
    token_ids: IntArray
    parents: IntArray
    classes: IntArray

    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        return self.num_nodes, self.token_ids, self.parents, self.classes


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the trees of a step came to; a row may have no tree, that is only a root.

    Attributes:
        kept: of the roots and nodes of all rows, row after row, each row's accepted path from its
            root: what was chosen behind these is the sequence's own.
        num_tokens: int32 [num_rows], tokens of each path, which is as many as the row gets: the
            accepted drafts and the bonus token.
    """

    kept: IntArray
    num_tokens: IntArray


class TreesView(Structure):
    """Pointers into columns, which must be int32, contiguous and alive for as long as it is used.

    Nobody looks at `slots` where only the trees matter: it may be null.
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
    """Whether C++ can read them: int32, one dimension, without gaps."""
    for column in columns:  # no generator: this is asked for every step
        if column.dtype != _INT32 or column.ndim != 1 or not column.flags.c_contiguous:
            return False
    return True


def view(trees: DraftTrees, slots: IntArray | None = None) -> TreesView:
    """Of columns that are known to be int32 and contiguous."""
    return TreesView(
        trees.num_nodes.size,
        None if slots is None else slots.ctypes.data,
        trees.num_nodes.ctypes.data,
        trees.token_ids.ctypes.data,
        trees.parents.ctypes.data,
        trees.classes.ctypes.data,
    )


def are_trees(trees: DraftTrees, max_nodes: IntArray, vocab_size: int, num_classes: int) -> bool:
    """Whether these can be trees: no larger than they may be, with tokens and classes that there
    are, and each node behind its parent.

    Raises:
        KernelLibraryError: the library of CPU kernels is not there.
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
    """Walk down each tree for as long as what was chosen behind a node is one of its children.

    What is chosen at a node is a sample of the target given the path to it, with the random number
    of its position, so what comes out is what decoding token by token would have given, whatever
    the drafts were.

    Args:
        trees: well formed.
        chosen: [sum(num_nodes + 1)], behind each row's root and nodes.

    Raises:
        KernelLibraryError: the library of CPU kernels is not there.
        ValueError: `chosen` is not that.
    """
    count = trees.num_nodes.size + trees.token_ids.size
    if chosen.shape != (count,):
        raise ValueError(f"{chosen.size} tokens were chosen behind {count} roots and nodes")
    chosen = np.ascontiguousarray(chosen, dtype=np.int64)
    kept = np.empty(count, dtype=np.int32)
    num_tokens = np.empty(trees.num_nodes.size, dtype=np.int32)
    total = library_keeping_gil().taco_accept_drafts(
        byref(view(trees)), chosen.ctypes.data, kept.ctypes.data, num_tokens.ctypes.data
    )
    return Accepted(kept[:total], num_tokens)
