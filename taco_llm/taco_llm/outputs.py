"""What generation gives to Python callers."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taco_gateway.text.output.output_processor import TextUpdate
    from taco_gateway.text.output.token_logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token that was possible at a position.

    Attributes:
        logprob: natural logarithm of its probability.
        rank: 1 for the most likely token of the vocabulary.
        decoded_token: its text.
    """

    logprob: float
    rank: int
    decoded_token: str


# The tokens of one position by id: the chosen one and the most likely ones.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One sequence of a request.

    Attributes:
        index: which of the request's `n` sequences.
        text: the generated text.
        token_ids: its tokens; the one that ended the sequence is among them.
        cumulative_logprob: sum of the log probabilities of `token_ids`; None only before the first
            token, and with `logprobs_during_spec_decoding=False`.
        logprobs: one entry a token; None unless they were asked for.
        finish_reason: "stop", "length" or "abort"; None while the sequence runs.
        stop_reason: the stop string or the id of the stop token that ended it; None otherwise.
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


@dataclass(slots=True)
class RequestOutput:
    """A request and what was generated for it so far.

    Attributes:
        request_id: names the request.
        prompt: its text; None where it was given as token ids and there is no tokenizer.
        prompt_token_ids: its tokens.
        prompt_logprobs: one entry a prompt token, None for the first; None unless asked for.
        outputs: the request's sequences, by index.
        finished: whether all of them have ended.
        num_cached_tokens: prompt tokens that were found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = False
    num_cached_tokens: int = 0

    def add(self, update: "TextUpdate") -> None:
        """Adds the news of one sequence."""
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
        if update.index == 0:  # the siblings find this request's own prompt in the cache
            self.num_cached_tokens = update.num_cached_tokens
        self.finished = all(output.finished() for output in self.outputs)

    def abort(self) -> None:
        """Marks the sequences that still run as aborted."""
        for output in self.outputs:
            if not output.finished():
                output.finish_reason = "abort"
        self.finished = True

    def snapshot(self) -> "RequestOutput":
        """A copy that later news leave alone."""
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
            prompt=self.prompt,
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
