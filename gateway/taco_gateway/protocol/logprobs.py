"""Log probabilities in answers: OpenAI's chat and completions forms, vLLM's `prompt_logprobs`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from taco_gateway.text.output.echoed_prompt import EchoedPrompt
from taco_gateway.text.output.token_logprobs import Candidate, TokenLogprob

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
    """Columns with one entry per token. The first prompt token (`echo`) has null."""

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
    """Formats the log probabilities of one request, one entry per token.

    A token that is not in the text (EOS, a stop token, part of a stop string) has an empty text, so
    that the joined tokens equal the text.

    Args:
        as_token_ids: name tokens `token_id:N`, which distinguishes tokens without valid text.
    """

    def __init__(self, *, as_token_ids: bool) -> None:
        self._as_token_ids = as_token_ids

    def chat(self, rows: Iterable[TokenLogprob]) -> ChatLogprobs:
        return ChatLogprobs(
            content=[
                ChatTokenLogprob(
                    **self.chat_entry(row.chosen, row),
                    top_logprobs=[
                        TopLogprob(**self.chat_entry(candidate, row)) for candidate in row.top
                    ],
                )
                for row in rows
            ]
        )

    def completion(self, rows: Iterable[TokenLogprob], *, offset: int = 0) -> CompletionLogprobs:
        """The columns of a sequence.

        Args:
            offset: characters of the choice's text before the sequence (an echoed prompt).
        """
        columns = CompletionLogprobs()
        for row in rows:
            token = row.chosen.token if row.in_text else ""
            self._append(columns, row, token, row.text_offset + offset)
        return columns

    def echoed_prompt(
        self, echoed: EchoedPrompt, rows: Sequence[TokenLogprob | None]
    ) -> CompletionLogprobs:
        """The columns of an echoed prompt. The first token has no log probability."""
        columns = CompletionLogprobs(
            tokens=[self.name(echoed.token_ids[0], echoed.tokens[0])],
            token_logprobs=[None],
            top_logprobs=[None],
            text_offset=[0],
        )
        for position, row in enumerate(rows):
            if row is not None:
                self._append(columns, row, echoed.tokens[position], echoed.offsets[position])
        return columns

    def prompt(self, rows: Sequence[TokenLogprob | None]) -> PromptLogprobs:
        return [
            None
            if row is None
            else {key: PromptLogprob(**entry) for key, entry in self.prompt_entries(row)}
            for row in rows
        ]

    def prompt_entries(self, row: TokenLogprob) -> Iterator[tuple[str, dict[str, Any]]]:
        """The keys and fields of the entries of a prompt position. Keys differ."""
        yield self._prompt_entry(row.chosen)
        for candidate in row.top:
            if candidate.token_id != row.chosen.token_id:
                yield self._prompt_entry(candidate)

    def name(self, token_id: int, token: str) -> str:
        return f"token_id:{token_id}" if self._as_token_ids else token

    @staticmethod
    def _prompt_entry(candidate: Candidate) -> tuple[str, dict[str, Any]]:
        return str(candidate.token_id), {
            "logprob": finite(candidate.logprob),
            "rank": candidate.rank,
            "decoded_token": candidate.token,
        }

    def chat_entry(self, candidate: Candidate, row: TokenLogprob) -> dict[str, Any]:
        """The fields of a `TopLogprob`."""
        shown = row.in_text or candidate.token_id != row.chosen.token_id
        return {
            "token": self.name(candidate.token_id, candidate.token if shown else ""),
            "logprob": finite(candidate.logprob),
            "bytes": list(candidate.token_bytes) if shown else [],
        }

    def _append(
        self, columns: CompletionLogprobs, row: TokenLogprob, token: str, offset: int
    ) -> None:
        """Appends the entry of a token with the text `token`."""
        chosen = row.chosen
        name = self.name(chosen.token_id, token)
        columns.tokens.append(name)
        columns.token_logprobs.append(finite(chosen.logprob))
        # Another token with the same text is named by its id, so that keys are unique.
        top: dict[str, float] = {}
        for candidate in row.top:
            key = name
            if candidate.token_id != chosen.token_id:
                key = self.name(candidate.token_id, candidate.token)
                if key == name or key in top:
                    key = f"token_id:{candidate.token_id}"
            top[key] = finite(candidate.logprob)
        top[name] = finite(chosen.logprob)
        columns.top_logprobs.append(top)
        columns.text_offset.append(offset)


def finite(logprob: float) -> float:
    """`logprob` in the range of JSON: NaN and lower values become `LOWEST_LOGPROB`."""
    return logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB
