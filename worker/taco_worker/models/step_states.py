"""The recurrent states of sequences: where a step finds and leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.models.plan.ops.recurrence import StateEntry

# In place of a row from which a sequence continues: it begins with zeros.
NO_STATE = -1
# Of an entry's first number, in numbers: whole cache lines.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class StepStates:
    """The rows of state memory that the sequences of a step read and write; int32 [num_seqs].

    A row holds the states of all ops for one sequence. Different sequences write different rows,
    and none writes a row that another one reads.

    Attributes:
        rows: get the state after a sequence's tokens of the step.
        sources: hold the state before them, the same row or another one; NO_STATE: zeros.
        saved_tokens: get also the state after this many tokens of the step in `saved_rows`; 0: no.
        saved_rows: other rows than `rows` and `sources`.
    """

    rows: IntArray
    sources: IntArray
    saved_tokens: IntArray
    saved_rows: IntArray

    @classmethod
    def of_new(cls, num_seqs: int) -> StepStates:
        """Sequences that begin, in the first rows."""
        rows = np.arange(num_seqs, dtype=np.int32)
        nothing = np.zeros(num_seqs, dtype=np.int32)
        return cls(rows, np.full(num_seqs, NO_STATE, dtype=np.int32), nothing, nothing)


def entry_starts(entries: Sequence[StateEntry]) -> list[int]:
    """The first number of each entry in a row, and the size of a row, in numbers."""
    starts = [0]
    for entry in entries:
        starts.append(starts[-1] + -(-entry.size // _ALIGNMENT) * _ALIGNMENT)
    return starts


def state_row_bytes(entries: Sequence[StateEntry]) -> int:
    """Memory of the states of one sequence."""
    return 4 * entry_starts(entries)[-1]
