"""Log probabilities as the two OpenAI surfaces write them, and vLLM's prompt log probabilities."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from taco_gateway.text.text_engine import Candidate, TokenLogprob

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(BaseModel):
    """Columns, an entry a token. The first prompt token (`echo`) has no log probability: null."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def extend(self, other: "CompletionLogprobs") -> None:
        self.tokens.extend(other.tokens)
        self.token_logprobs.extend(other.token_logprobs)
        self.top_logprobs.extend(other.top_logprobs)
        self.text_offset.extend(other.text_offset)


class PromptLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class LogprobFormatter:
    """Writes log probabilities for one request.

    Args:
        as_token_ids: name tokens `token_id:N`, so that those that are no text can be told apart.
    """

    def __init__(self, *, as_token_ids: bool) -> None:
        self._as_token_ids = as_token_ids

    def chat(self, rows: Iterable[TokenLogprob]) -> ChatLogprobs:
        return ChatLogprobs(
            content=[
                ChatTokenLogprob(
                    token=self.name(row.chosen.token_id, row.chosen.token),
                    logprob=finite(row.chosen.logprob),
                    bytes=list(row.chosen.token_bytes),
                    top_logprobs=[self._top(candidate) for candidate in row.top],
                )
                for row in rows
                if row.in_text
            ]
        )

    def completion(self, rows: Iterable[TokenLogprob], *, offset: int = 0) -> CompletionLogprobs:
        """Args:
        offset: characters of the choice's text before the sequence's own (an echoed prompt).
        """
        columns = CompletionLogprobs()
        for row in rows:
            if row.in_text:
                self._append(columns, row, offset)
        return columns

    def echoed_prompt(
        self, first_token: str, rows: Sequence[TokenLogprob | None]
    ) -> CompletionLogprobs:
        """An echoed prompt's columns. Its first token, named so, has no log probability."""
        columns = CompletionLogprobs(
            tokens=[first_token], token_logprobs=[None], top_logprobs=[None], text_offset=[0]
        )
        for row in rows:
            if row is not None:
                self._append(columns, row, 0)
        return columns

    def prompt(self, rows: Sequence[TokenLogprob | None]) -> PromptLogprobs:
        return [
            {
                str(candidate.token_id): PromptLogprob(
                    logprob=finite(candidate.logprob),
                    rank=candidate.rank,
                    decoded_token=candidate.token,
                )
                for candidate in (row.chosen, *row.top)
            }
            if row is not None
            else None
            for row in rows
        ]

    def name(self, token_id: int, token: str) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else token

    def _top(self, candidate: Candidate) -> TopLogprob:
        return TopLogprob(
            token=self.name(candidate.token_id, candidate.token),
            logprob=finite(candidate.logprob),
            bytes=list(candidate.token_bytes),
        )

    def _append(self, columns: CompletionLogprobs, row: TokenLogprob, offset: int) -> None:
        columns.tokens.append(self.name(row.chosen.token_id, row.chosen.token))
        columns.token_logprobs.append(finite(row.chosen.logprob))
        # Tokens of the same text share a key; the likelier one comes first and stays.
        top: dict[str, float] = {}
        for candidate in (*row.top, row.chosen):
            top.setdefault(
                self.name(candidate.token_id, candidate.token), finite(candidate.logprob)
            )
        columns.top_logprobs.append(top)
        columns.text_offset.append(row.text_offset + offset)


def finite(logprob: float) -> float:
    """`logprob` as JSON can carry it; NaN and everything below becomes `LOWEST_LOGPROB`."""
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
