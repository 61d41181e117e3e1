"""Counts the tokens of each sequence whose hidden states a drafter has observed."""

from __future__ import annotations

import numpy as np

from taco_proto.steps import IntArray, JoinedSequences
from taco_worker.speculation.drafter import ComputedTokens


class ObservedTokens:
    """For each slot, the number of known tokens and of tokens with observed hidden states.

    Attributes:
        num_observed: int32 [max_num_seqs], the position after the last observed token.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.num_observed = np.zeros(max_num_seqs, dtype=np.int32)
        self._num_tokens = np.zeros(max_num_seqs, dtype=np.int32)

    def join(self, joined: JoinedSequences) -> None:
        self._num_tokens[joined.slots] = joined.num_tokens
        self.num_observed[joined.slots] = 0

    def append(self, slots: IntArray, num_tokens: IntArray) -> None:
        self._num_tokens[slots] += num_tokens

    def observe(self, computed: ComputedTokens) -> None:
        self.num_observed[computed.slots] = computed.positions + computed.num_tokens

    def is_ready(self, slots: IntArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """bool [num_rows]: whether all tokens but the last are observed, as drafting requires.

        That is false while a prompt is computed, and after a step whose hidden states were lost.
        """
        num_observed = self.num_observed[slots]
        ready: np.ndarray[tuple[int], np.dtype[np.bool_]] = (num_observed > 0) & (
            num_observed == self._num_tokens[slots] - 1
        )
        return ready
