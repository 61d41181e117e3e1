"""Log probabilities as columns: one row a position, several entries a row."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class LogprobColumns:
    """Log probabilities of several positions, packed into four arrays.

    Row i owns the next `num_entries[i]` entries of the other columns (0: the request asked for
    none). The first entry of a row is the token at that position; the others are the most likely
    tokens, best first.

    Attributes:
        num_entries: int32 [num_rows].
        token_ids: int32 [sum(num_entries)].
        logprobs: float32 [sum(num_entries)], natural logarithms.
        ranks: int32 [sum(num_entries)], from 1 (the most likely token of the vocabulary).
    """

    __slots__ = ("logprobs", "num_entries", "ranks", "token_ids")

    def __init__(
        self,
        num_entries: npt.ArrayLike = (),
        token_ids: npt.ArrayLike = (),
        logprobs: npt.ArrayLike = (),
        ranks: npt.ArrayLike = (),
    ) -> None:
        self.num_entries: IntArray = np.asarray(num_entries, np.int32)
        self.token_ids: IntArray = np.asarray(token_ids, np.int32)
        self.logprobs: FloatArray = np.asarray(logprobs, np.float32)
        self.ranks: IntArray = np.asarray(ranks, np.int32)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogprobColumns):
            return NotImplemented
        columns = zip(self._columns(), other._columns(), strict=True)
        return all(np.array_equal(own, others) for own, others in columns)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LogprobColumns({', '.join(repr(column.tolist()) for column in self._columns())})"

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 [num_rows + 1]: where the entries of each row begin, and where they all end."""
        offsets = np.zeros(self.num_entries.size + 1, np.int64)
        np.cumsum(self.num_entries, out=offsets[1:])
        return offsets

    def rows(self) -> Iterator[tuple[list[int], list[float], list[int]]]:
        """(token_ids, logprobs, ranks) of every row, in order; empty where none were asked for."""
        token_ids, logprobs = self.token_ids.tolist(), self.logprobs.tolist()
        ranks = self.ranks.tolist()
        start = 0
        for count in self.num_entries.tolist():
            end = start + count
            yield token_ids[start:end], logprobs[start:end], ranks[start:end]
            start = end

    def chosen(self) -> list[float]:
        """The log probability of the token at each position that has a row."""
        if self.num_entries.size == 1:  # the usual case: one token a step
            return [float(self.logprobs[0])] if self.logprobs.size else []
        return self.logprobs[self.offsets[:-1][self.num_entries > 0]].tolist()

    def append_row(self, token_ids: list[int], logprobs: list[float], ranks: list[int]) -> None:
        """Adds one row. It copies all columns: for few rows."""
        row = LogprobColumns([len(token_ids)], token_ids, logprobs, ranks)
        whole = concatenate([self, row])
        self.num_entries, self.token_ids = whole.num_entries, whole.token_ids
        self.logprobs, self.ranks = whole.logprobs, whole.ranks

    def take(self, rows: npt.NDArray[np.integer]) -> "LogprobColumns":
        """The rows with these numbers, in this order."""
        num_entries = self.num_entries[rows]
        if self._has_one_entry_a_row():  # only the chosen token, as `cumulative_logprob` needs
            return LogprobColumns(
                num_entries, self.token_ids[rows], self.logprobs[rows], self.ranks[rows]
            )
        ends = np.cumsum(num_entries)
        shifts = self.offsets[rows] - (ends - num_entries)
        entries = np.repeat(shifts, num_entries)
        entries += np.arange(entries.size)
        return LogprobColumns(
            num_entries, self.token_ids[entries], self.logprobs[entries], self.ranks[entries]
        )

    def split(self, bounds: Sequence[int]) -> "list[LogprobColumns]":
        """Views of the rows from each bound to the next one; bounds are row numbers and rise."""
        offsets = bounds
        if not self._has_one_entry_a_row():
            offsets = self.offsets[np.asarray(bounds, np.int64)].tolist()
        return [
            self.view(bounds[i], bounds[i + 1], offsets[i], offsets[i + 1])
            for i in range(len(bounds) - 1)
        ]

    def view(
        self, first_row: int, last_row: int, first_entry: int, last_entry: int
    ) -> "LogprobColumns":
        """Some rows, whose entries the caller knows. It makes one for each token of a step: the
        columns have their types already."""
        view = object.__new__(LogprobColumns)
        view.num_entries = self.num_entries[first_row:last_row]
        view.token_ids = self.token_ids[first_entry:last_entry]
        view.logprobs = self.logprobs[first_entry:last_entry]
        view.ranks = self.ranks[first_entry:last_entry]
        return view

    def _has_one_entry_a_row(self) -> bool:
        same = self.num_entries.size == self.token_ids.size
        return same and bool((self.num_entries == 1).all())

    def _columns(self) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        return self.num_entries, self.token_ids, self.logprobs, self.ranks


def without_entries(num_rows: int) -> LogprobColumns:
    """Rows of positions that asked for no log probabilities."""
    return LogprobColumns(np.zeros(num_rows, np.int32))


def concatenate(parts: Sequence[LogprobColumns]) -> LogprobColumns:
    """The rows of all parts, one after the other; at least one part."""
    if len(parts) == 1:
        return parts[0]
    return LogprobColumns(
        np.concatenate([part.num_entries for part in parts]),
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.ranks for part in parts]),
    )
