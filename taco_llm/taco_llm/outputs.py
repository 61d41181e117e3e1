"""Results of offline generation: requests, sequences and log probabilities."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taco_gateway.text.output.output_processor import TextUpdate
    from taco_gateway.text.output.token_logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Logprob:
    """A candidate token at a position.

    Attributes:
        logprob: natural logarithm of its probability.
        rank: rank in the vocabulary; 1 is the most likely token.
        decoded_token: the text of the token.
    """

    logprob: float
    rank: int
    decoded_token: str


# Candidates of one position by token id: the chosen token and the most likely ones.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence of a request.

    Attributes:
        index: index among the request's `n` sequences.
        text: the generated text.
        token_ids: the generated tokens, including the token that ended the sequence.
        cumulative_logprob: sum of the log probabilities of `token_ids`; None before the first
            token, with `structured_outputs` unless the request asked for `logprobs`, and with
            `logprobs_during_spec_decoding=False`.
        logprobs: one entry per token; None unless the request asked for them.
        finish_reason: "stop", "length" or "abort"; None while the sequence runs.
        stop_reason: the stop string or stop token id that ended the sequence; None otherwise.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


class PromptText:
    """The text of a prompt. Decoding token ids takes milliseconds, so it waits for a reader."""

    __slots__ = ("_decode", "_text")

    def __init__(self, text: str | None, decode: Callable[[], str] | None = None) -> None:
        """`decode` returns the text if it is not known."""
        self._text = text
        self._decode = decode

    def read(self) -> str | None:
        decode = self._decode  # another thread may read too
        if decode is not None:
            self._text = decode()
            self._decode = None
        return self._text

    def __repr__(self) -> str:
        return repr(self.read())

    def __reduce__(self) -> tuple[type["PromptText"], tuple[str | None]]:
        return PromptText, (self.read(),)  # copies have no tokenizer


@dataclass(slots=True)
class RequestOutput:
    """A request and its output so far.

    Attributes:
        request_id: the id of the request.
        prompt_text: the prompt's text, which `prompt` reads.
        prompt_token_ids: the prompt's tokens.
        prompt_logprobs: one entry per prompt token, None for the first token; None unless the
            request asked for them.
        outputs: the sequences of the request by index.
        finished: whether all sequences have ended.
        num_cached_tokens: prompt tokens found in the prefix cache.
    """

    request_id: str
    prompt_text: PromptText
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0

    @property
    def prompt(self) -> str | None:
        """The prompt's text; None for a prompt of token ids without a tokenizer."""
        return self.prompt_text.read()

    def add(self, update: "TextUpdate") -> None:
        """Adds new tokens and text of one sequence."""
        output = self.outputs[update.index]
        output.text += update.text
        output.token_ids.extend(update.token_ids)
        if update.logprob_sum is not None:
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + update.logprob_sum
        if update.logprobs is not None:
            output.logprobs = output.logprobs or []
            output.logprobs.extend(_position(entry) for entry in update.logprobs)
        if update.prompt_logprobs is not None:
            self.prompt_logprobs = [
                None if entry is None else _position(entry) for entry in update.prompt_logprobs
            ]
        if update.finish_reason is not None:
            output.finish_reason = update.finish_reason
            output.stop_reason = update.stop_reason
        if update.index == 0:  # the other sequences find the prompt of the first in the cache
            self.num_cached_tokens = update.num_cached_tokens
        self.finished = all(output.finished() for output in self.outputs)

    def abort(self) -> None:
        """Marks unfinished sequences as aborted."""
        for output in self.outputs:
            if not output.finished():
                output.finish_reason = "abort"
        self.finished = True

    def snapshot(self) -> "RequestOutput":
        """A copy that later updates do not change."""
        outputs = [
            CompletionOutput(
                index=output.index,
                text=output.text,
                token_ids=list(output.token_ids),
                cumulative_logprob=output.cumulative_logprob,
                logprobs=None if output.logprobs is None else list(output.logprobs),
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
            )
            for output in self.outputs
        ]
        return RequestOutput(
            request_id=self.request_id,
            prompt_text=self.prompt_text,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs,
            prompt_logprobs=self.prompt_logprobs,
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
        )


def _position(entry: "TokenLogprob") -> PositionLogprobs:
    return {
        candidate.token_id: Logprob(candidate.logprob, candidate.rank, candidate.token)
        for candidate in (entry.chosen, *entry.top)
    }
