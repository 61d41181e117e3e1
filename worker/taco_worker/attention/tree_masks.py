"""Attention masks of draft trees: which tokens of the step each token sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from taco_proto.steps import IntArray

# Bits of a mask: the maximum number of tokens in a step of a sequence with a tree.
MAX_TREE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TreeMasks:
    """Masks for a step with draft trees; KV is stored in the order of the tokens.

    Attributes:
        masks: int64 [num_tokens]; bit j: the token sees its sequence's j-th token of the step.
            -1: the token sees all tokens up to itself.
        positions: int32 [num_tokens], the true positions, which sliding windows use.
    """

    masks: Tensor
    positions: Tensor


def tree_masks(parents: IntArray, query_start: IntArray) -> npt.NDArray[np.int64]:
    """The masks of a step; -1 for sequences without branches.

    Args:
        parents, query_start: as in ModelInput.

    Raises:
        ValueError: a tree has more tokens than a mask has bits.
    """
    masks = np.full(parents.size, -1, dtype=np.int64)
    branches = np.flatnonzero(parents != np.arange(-1, parents.size - 1))
    branches = branches[parents[branches] >= 0]
    for sequence in np.unique(np.searchsorted(query_start, branches, side="right") - 1).tolist():
        start, end = int(query_start[sequence]), int(query_start[sequence + 1])
        if end - start > MAX_TREE_TOKENS:
            raise ValueError(
                f"a sequence with a tree has {end - start} tokens in a step, and {MAX_TREE_TOKENS} "
                "is the maximum"
            )
        seen: list[int] = []
        for token, parent in enumerate((parents[start:end] - start).tolist()):
            seen.append(1 << token | (seen[parent] if parent >= 0 else 0))
        masks[start:end] = np.array(seen, dtype=np.uint64).view(np.int64)
    return masks
