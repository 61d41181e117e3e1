"""The newest tokens of the running sequences, stored for a whole step at once."""

import numpy as np
import numpy.typing as npt

from taco_proto.steps import IntArray

# Rows, one a step without drafts; 1 KiB each at 256 slots.
MAX_ROWS = 256
NO_TOKEN = -1


class TokenLog:
    """Tokens by row and slot, until the sequence of the slot takes them.

    A step stores its tokens by one array operation. Appending each token to an array of its
    sequence would touch memory of every sequence in every step.
    """

    def __init__(self, num_slots: int) -> None:
        self._rows = np.full((MAX_ROWS, num_slots), NO_TOKEN, dtype=np.int32)
        self._num_rows = 0
        self._first_rows = [0] * num_slots  # of the tokens that are not taken yet

    def has_room(self, num_rows: int) -> bool:
        """`num_rows`: the most tokens of one slot that `add` will store."""
        return self._num_rows + num_rows <= MAX_ROWS

    def add(self, slots: IntArray, tokens: IntArray) -> None:
        """Stores one token of each slot."""
        self._rows[self._num_rows, slots] = tokens
        self._num_rows += 1

    def add_several(
        self, slots: IntArray, tokens: IntArray, places: npt.NDArray[np.int64], num_rows: int
    ) -> None:
        """Stores tokens of which a slot may have several.

        Args:
            slots: of each token, int32 [num_tokens].
            places: of each token among those of its slot, below `num_rows`.
        """
        self._rows[self._num_rows + places, slots] = tokens
        self._num_rows += num_rows

    def begin(self, slot: int) -> None:
        """A slot has a new owner: what was stored before belongs to the last one."""
        self._first_rows[slot] = self._num_rows

    def take(self, slot: int) -> list[int]:
        """The tokens of a slot that were not taken yet."""
        first = self._first_rows[slot]
        if first == self._num_rows:
            return []
        self._first_rows[slot] = self._num_rows
        column = self._rows[first : self._num_rows, slot]
        tokens: list[int] = column[column != NO_TOKEN].tolist()
        return tokens

    def clear(self) -> None:
        """Makes room. All tokens must have been taken."""
        self._rows[: self._num_rows] = NO_TOKEN
        self._num_rows = 0
        self._first_rows = [0] * len(self._first_rows)
