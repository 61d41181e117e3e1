"""Log probabilities with token texts and bytes, as clients read them."""

from dataclasses import dataclass

from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.logprobs import LogprobColumns


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
    top: list[Candidate]
    text_offset: int = 0
    in_text: bool = True


class CandidateReader:
    """Turns columns of log probabilities into candidates.

    Args:
        tokenizer: None: tokens have no text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._spellings: dict[int, tuple[str, bytes]] = {}

    def rows(self, columns: LogprobColumns) -> list[tuple[Candidate, list[Candidate]]]:
        """(the chosen token, the most likely tokens) of every position."""
        rows = []
        for row in columns.rows():
            candidates = [self._candidate(*entry) for entry in zip(*row, strict=True)]
            rows.append((candidates[0], candidates[1:]))
        return rows

    def _candidate(self, token_id: int, logprob: float, rank: int) -> Candidate:
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
