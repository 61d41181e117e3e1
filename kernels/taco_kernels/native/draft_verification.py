"""Verification of draft tokens: which drafts of a step are accepted (csrc/drafts/draft_trees.h)."""

from ctypes import byref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from taco_kernels.library import library_keeping_gil
from taco_kernels.native.draft_trees import DraftTrees, IntArray, view


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
