"""The interface of drafters on the worker: they return a tree of draft tokens per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import EMPTY, IntArray, JoinedSequences

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ComputedTokens:
    """Tokens whose KV a step has computed and kept, sequence after sequence.

    Attributes:
        slots, num_tokens: int32 [num_rows].
        positions: int32 [num_rows], of each sequence's first token here.
        next_token_ids: int32 [sum(num_tokens)], the token that follows each token.
        hidden: [sum(num_tokens), size], the states that `hidden_layers` asks for.
    """

    slots: IntArray
    num_tokens: IntArray
    positions: IntArray
    next_token_ids: IntArray
    hidden: Tensor

    def select(self, is_wanted: npt.NDArray[np.bool_]) -> ComputedTokens:
        """Select rows."""
        if is_wanted.all():
            return self
        tokens = np.flatnonzero(np.repeat(is_wanted, self.num_tokens))
        return ComputedTokens(
            self.slots[is_wanted],
            self.num_tokens[is_wanted],
            self.positions[is_wanted],
            self.next_token_ids[tokens],
            self.hidden[torch.from_numpy(tokens).to(self.hidden.device)],
        )


class Drafter(Protocol):
    """Drafts on the worker for the sequences of its batch, by slot. Not thread safe.

    Attributes:
        name: for metrics and logs: lookahead, ngram, medusa, eagle, eagle3.
        max_draft_tokens: the maximum number of nodes of a tree.
        priors: float32 [num_classes], the assumed acceptance rate of the nodes of each class, given
            an accepted parent, before any was verified.
        needs_history: `join` reads all tokens of a sequence, those in cached blocks too.
        hidden_layers: the hidden states that `observe` needs of every computed token: None is
            nothing, () is the state after the final norm, else the outputs of these layers side by
            side.
    """

    name: str
    max_draft_tokens: int
    priors: FloatArray
    needs_history: bool
    hidden_layers: tuple[int, ...] | None

    def clear(self) -> None:
        """Remove all sequences."""
        ...

    def leave(self, slots: IntArray) -> None: ...

    def join(self, joined: JoinedSequences) -> None:
        """Add sequences with their known tokens, of which some may be output."""
        ...

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        """Append the new tokens of sequences, `num_tokens` each."""
        ...

    def observe(self, computed: ComputedTokens) -> None:
        """Receive a step's hidden states, before `append` adds its new tokens."""
        ...

    def record_verified(
        self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray
    ) -> None:
        """Receive a step's result: the verified and the accepted drafts of each slot."""
        ...

    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        """Draft a tree after each sequence's last token, of at most `max_nodes` nodes without the
        root. Trees may be smaller, or empty."""
        ...


def no_drafts(num_rows: int) -> DraftTrees:
    return DraftTrees(np.zeros(num_rows, dtype=np.int32), EMPTY, EMPTY, EMPTY)


def chains(rows: Sequence[IntArray], classes: Sequence[IntArray]) -> DraftTrees:
    """Build trees without branches."""
    sizes = np.array([row.size for row in rows], dtype=np.int32)
    parents = [np.arange(-1, size - 1, dtype=np.int32) for size in sizes.tolist()]
    return DraftTrees(
        sizes,
        np.concatenate([EMPTY, *rows]),
        np.concatenate([EMPTY, *parents]),
        np.concatenate([EMPTY, *classes]),
    )
