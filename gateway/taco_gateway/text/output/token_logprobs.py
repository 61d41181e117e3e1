"""Log probabilities with token texts and bytes, as clients read them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.logprobs import LogprobColumns

# Entries of an update that are read at once. Others are read where they are written.
MAX_READ_ENTRIES = 2048
_PIECE = 1024


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate token of a position.

    Attributes:
        token: its text; for a token with part of a character, `bytes:` and its bytes as `\\x..`.
        token_bytes: its bytes, UTF-8 or part of it.
        logprob: natural logarithm; may be -inf.
        rank: 1 for the most likely token of the vocabulary.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The token at a position, and the requested number of most likely ones, best first.

    Attributes:
        text_offset: characters of the sequence's text before this token; 0 for tokens of a prompt.
        in_text: False for a token that adds nothing to the text: the EOS or stop token that ended
            the sequence, a skipped special token, or a token inside a stop string that was cut
            off.
    """

    chosen: Candidate
    top: Sequence[Candidate]
    text_offset: int = 0
    in_text: bool = True


class UnreadCandidates(Sequence[Candidate]):
    """The candidates of one position, made anew whenever they are read: they may be many.

    Args:
        row: one row.
        first: the first of its entries.
    """

    __slots__ = ("_first", "_reader", "_row")

    def __init__(self, reader: "CandidateReader", row: LogprobColumns, first: int = 0) -> None:
        self._reader = reader
        self._row = row
        self._first = first

    def __len__(self) -> int:
        return max(self._row.token_ids.size - self._first, 0)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...
    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        places = range(self._first, self._row.token_ids.size)[index]
        if isinstance(places, int):
            return self._read(places, places + 1)[0]
        return [self._read(place, place + 1)[0] for place in places]

    def __iter__(self) -> Iterator[Candidate]:
        for start in range(self._first, self._row.token_ids.size, _PIECE):
            yield from self._read(start, start + _PIECE)

    def _read(self, start: int, end: int) -> list[Candidate]:
        row = self._row
        columns = (row.token_ids, row.logprobs, row.ranks)
        entries = zip(*(column[start:end].tolist() for column in columns), strict=True)
        return [self._reader.candidate(*entry) for entry in entries]


class CandidateReader:
    """Turns columns of log probabilities into candidates.

    Args:
        tokenizer: None: tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._spellings: dict[int, tuple[str, bytes]] = {}

    def rows(self, columns: LogprobColumns) -> list[tuple[Candidate, Sequence[Candidate]]]:
        """(the chosen token, the most likely tokens) of every position."""
        if columns.token_ids.size > MAX_READ_ENTRIES:
            return [self._unread(row) for row in columns.split(range(columns.num_entries.size + 1))]
        rows: list[tuple[Candidate, Sequence[Candidate]]] = []
        for row in columns.rows():
            candidates = [self.candidate(*entry) for entry in zip(*row, strict=True)]
            rows.append((candidates[0], candidates[1:]))
        return rows

    def _unread(self, row: LogprobColumns) -> tuple[Candidate, Sequence[Candidate]]:
        every = UnreadCandidates(self, row)
        return every[0], UnreadCandidates(self, row, first=1)

    def candidate(self, token_id: int, logprob: float, rank: int) -> Candidate:
        return Candidate(token_id, *self.spell(token_id), logprob, rank)

    def spell(self, token_id: int) -> tuple[str, bytes]:
        """`token` and `token_bytes` of a `Candidate`."""
        spelling = self._spellings.get(token_id)
        if spelling is None:
            spelling = self._spellings[token_id] = self._spell(token_id)
        return spelling

    def _spell(self, token_id: int) -> tuple[str, bytes]:
        if self._tokenizer is None:
            return "", b""
        spelled = self._tokenizer.token_bytes(token_id)
        try:
            return spelled.decode(), spelled
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in spelled]), spelled
