"""Token log: the newest tokens of the running sequences, stored step by step."""

import numpy as np
import numpy.typing as npt

from taco_proto.steps import IntArray

# Rows of the log. A step without drafts takes one row of 1 KiB at 256 slots.
MAX_ROWS = 256
NO_TOKEN = -1


class TokenLog:
    """Tokens by row and slot, until the slot's sequence takes them.

    One array operation stores the tokens of a step. To append each token to its sequence would
    touch every sequence's memory in every step.
    """

    def __init__(self, num_slots: int) -> None:
        self._rows = np.full((MAX_ROWS, num_slots), NO_TOKEN, dtype=np.int32)
        self._num_rows = 0
        self._first_rows = [0] * num_slots  # first row that the slot's sequence has not taken

    def has_room(self, num_rows: int) -> bool:
        """Whether `num_rows` rows are free: the most tokens of one slot that come next."""
        return self._num_rows + num_rows <= MAX_ROWS

    def add(self, slots: IntArray, tokens: IntArray) -> None:
        """Store one token of each slot."""
        self._rows[self._num_rows, slots] = tokens
        self._num_rows += 1

    def add_several(
        self, slots: IntArray, tokens: IntArray, places: npt.NDArray[np.int64], num_rows: int
    ) -> None:
        """Store tokens of which a slot may have several.

        Args:
            slots: slot of each token, int32 [num_tokens].
            places: index of each token among those of its slot, below `num_rows`.
        """
        self._rows[self._num_rows + places, slots] = tokens
        self._num_rows += num_rows

    def begin(self, slot: int) -> None:
        """Start a slot for a new sequence: earlier rows belong to the last one."""
        self._first_rows[slot] = self._num_rows

    def take(self, slot: int) -> list[int]:
        """Take the tokens that were stored for a slot since the last call."""
        first = self._first_rows[slot]
        if first == self._num_rows:
            return []
        self._first_rows[slot] = self._num_rows
        column = self._rows[first : self._num_rows, slot]
        tokens: list[int] = column[column != NO_TOKEN].tolist()
        return tokens

    def clear(self) -> None:
        """Empty the log. All tokens must have been taken."""
        self._rows[: self._num_rows] = NO_TOKEN
        self._num_rows = 0
        self._first_rows = [0] * len(self._first_rows)
