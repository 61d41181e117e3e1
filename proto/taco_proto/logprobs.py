"""Log probabilities as columns: one row a position, several entries a row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class LogprobColumns:
    """Row i owns the next `num_entries[i]` entries of the other columns (0: none were asked for).

    The first entry of a row is the token at that position, the others are the most likely tokens,
    best first. `ranks` count from 1 (the most likely token of the vocabulary).
    """

    num_entries: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[list[int], list[float], list[int]]]:
        """(token_ids, logprobs, ranks) of every row, in order; empty where none were asked for."""
        start = 0
        for count in self.num_entries:
            end = start + count
            yield self.token_ids[start:end], self.logprobs[start:end], self.ranks[start:end]
            start = end

    def chosen(self) -> list[float]:
        """The log probability of the token at each position that has a row."""
        if len(self.logprobs) == len(self.num_entries):
            return self.logprobs  # an entry a row
        return [logprobs[0] for _, logprobs, _ in self.rows() if logprobs]

    def append_row(self, token_ids: list[int], logprobs: list[float], ranks: list[int]) -> None:
        self.num_entries.append(len(token_ids))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)

    def select(self, rows: Sequence[int]) -> "LogprobColumns":
        """Some rows, in rising order."""
        wanted = set(rows)
        selected = LogprobColumns()
        for row, entries in enumerate(self.rows()):
            if row in wanted:
                selected.append_row(*entries)
        return selected
