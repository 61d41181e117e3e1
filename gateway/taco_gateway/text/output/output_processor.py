"""Output processing of a sequence: detokenization, stop strings and log probabilities."""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.text.output.stop_strings import StopStrings
from taco_gateway.text.output.token_logprobs import Candidate, CandidateReader, TokenLogprob
from taco_gateway.text.response.response_delta import ResponseDelta
from taco_gateway.text.response.response_parser import ResponseParser
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams

_FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORTED: "abort",
}


@dataclass(slots=True)
class TextUpdate:
    """New text and tokens of one sequence.

    Attributes:
        index: of the sequence, one of `n`.
        text: the new text, without partial characters and without a stop string that is cut off.
        token_ids: the new tokens. Text may lag behind them. They include the tokens that ended the
            sequence (EOS, those of a stop string), but no token after a stop string.
        logprobs: one entry per token; None: not requested. They may lag behind `token_ids`: an
            entry comes once it is known whether its token is in the text.
        logprob_sum: sum of the log probabilities of `token_ids`; None unless the request sums them.
        finish_reason: "stop", "length" or "abort" on the sequence's last update, None before.
        stop_reason: the stop string or the id of the stop token that ended it; None for EOS.
        num_prompt_tokens, num_cached_tokens: usage of the prompt.
        prompt_logprobs: one entry per prompt token, None for the first. All of them come with one
            update of the request (index 0), if requested.
        queue_seconds: time from the scheduler's receipt of the request to its first step; on one of
            the first updates.
        parsed: `text` divided into reasoning, content and calls; None: the request has no parser.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    logprob_sum: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    queue_seconds: float | None = None
    parsed: ResponseDelta | None = None

    def extend(self, later: "TextUpdate") -> None:
        """Appends a later update of the same sequence."""
        self.text += later.text
        self.token_ids += later.token_ids
        if later.queue_seconds is not None:
            self.queue_seconds = later.queue_seconds
        if later.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *later.logprobs]
        if later.logprob_sum is not None:
            self.logprob_sum = (self.logprob_sum or 0.0) + later.logprob_sum
        if later.parsed is not None:
            self.parsed = self.parsed or ResponseDelta()
            self.parsed.extend(later.parsed)
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.num_prompt_tokens = later.num_prompt_tokens
        self.num_cached_tokens = later.num_cached_tokens
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs


class OutputProcessor:
    """Processes the output of one sequence: text, stop strings, usage and log probabilities.

    Args:
        index: of the sequence.
        prompt_token_ids: the tokens before the sequence.
        tokenizer: None: no text.
        candidates: gives the texts of tokens in log probabilities.
        eos_token_ids: of the model; they are not reported as stop reason.
        gives_logprobs: updates contain an entry for each token.
        sums_logprobs: updates contain the sum of their tokens' log probabilities.
        parser: divides the text; None: the text stays whole.
    """

    def __init__(
        self,
        index: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        candidates: CandidateReader,
        eos_token_ids: Collection[int],
        *,
        gives_logprobs: bool,
        sums_logprobs: bool,
        parser: ResponseParser | None = None,
    ) -> None:
        self._index = index
        self._params = params
        self._candidates = candidates
        self._eos_token_ids = eos_token_ids
        self._gives_logprobs = gives_logprobs
        self._sums_logprobs = sums_logprobs
        self._num_prompt_tokens = len(prompt_token_ids)
        self._num_tokens = 0
        self._num_cached_tokens = 0
        self._detokenizer = None
        if tokenizer is not None and params.detokenize:
            self._detokenizer = tokenizer.detokenizer(
                prompt_token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )
        self._stops = None
        if params.stop and self._detokenizer is not None:
            self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._parser = parser if self._detokenizer is not None else None
        self._token_by_token = self._stops is not None or gives_logprobs or self._parser is not None
        self._left_out: Collection[int] = ()  # special tokens that are skipped
        if gives_logprobs and tokenizer is not None and params.skip_special_tokens:
            self._left_out = tokenizer.special_ids
        self._num_chars = 0  # of the text so far; some may be held back
        self._waiting: deque[tuple[int, bool, Candidate, Sequence[Candidate]]] = deque()
        self.hit_stop_string = False

    @property
    def ended_early(self) -> bool:
        """The answer is complete although the sequence has not finished upstream."""
        return self.hit_stop_string or (self._parser is not None and self._parser.is_over)

    def feed(self, update: SequenceUpdate) -> TextUpdate:
        """Turns an engine update of this sequence into a text update.

        Afterwards `ended_early` tells whether to cancel the sequence upstream.
        """
        token_ids = update.token_ids
        finished = update.finish_reason != FinishReason.RUNNING
        if self._num_tokens == 0:
            # A later value is of a prefill after preemption, which found the sequence's own tokens.
            self._num_cached_tokens = update.num_cached_tokens
        if self._token_by_token:
            output = self._feed_token_by_token(update)
        else:
            output = TextUpdate(self._index, token_ids=token_ids)
            self._num_tokens += len(token_ids)
            if self._detokenizer is not None:
                shown = token_ids[:-1] if finished and self._hides_last(update) else token_ids
                output.text = self._detokenizer.feed(shown)
                if finished:
                    output.text += self._detokenizer.flush()
        if finished and output.finish_reason is None:
            output.finish_reason = _FINISH_REASONS[FinishReason(update.finish_reason)]
            output.stop_reason = self._stop_reason(update)
        if self._parser is not None:
            self._finish_parsing(self._parser, output)
        if self._sums_logprobs and update.logprobs is not None:
            output.logprob_sum = math.fsum(update.logprobs.chosen()[: len(output.token_ids)])
        output.num_prompt_tokens = self._num_prompt_tokens
        output.num_cached_tokens = self._num_cached_tokens
        return output

    def _feed_token_by_token(self, update: SequenceUpdate) -> TextUpdate:
        rows = None
        if self._gives_logprobs and update.logprobs is not None:
            rows = self._candidates.rows(update.logprobs)
        finished = update.finish_reason != FinishReason.RUNNING
        hidden = len(update.token_ids) - 1 if finished and self._hides_last(update) else -1
        output = TextUpdate(self._index, logprobs=[] if self._gives_logprobs else None)
        pieces: list[str] = []
        for i, token_id in enumerate(update.token_ids):
            self._num_tokens += 1
            output.token_ids.append(token_id)
            if rows is not None:
                in_text = i != hidden and token_id not in self._left_out
                self._waiting.append((self._num_chars, in_text, *rows[i]))
            if i != hidden and self._detokenizer is not None:
                pieces.append(self._kept_of_token(token_id))
                if self.ended_early:
                    break
        if finished and self._detokenizer is not None and not self.ended_early:
            # An unfinished character may also complete a stop string.
            rest = self._keep(self._detokenizer.flush())
            if self._stops is not None and not self.hit_stop_string:
                rest += self._stops.flush()
            pieces.append(rest)
            if self._parser is not None:
                self._parser.feed(rest)
        output.text = "".join(pieces)
        if self.hit_stop_string and self._stops is not None:
            output.finish_reason, output.stop_reason = "stop", self._stops.hit
        if output.logprobs is not None:
            self._release_logprobs(output.logprobs, finished or self.ended_early)
        return output

    def _kept_of_token(self, token_id: int) -> str:
        """The text that a token releases."""
        assert self._detokenizer is not None
        text = self._detokenizer.feed((token_id,))
        if self._parser is None:
            return self._keep(text)
        self._parser.add_token(token_id, text, self._num_chars + len(text))
        kept = self._keep(text)
        self._parser.feed(kept, num_tokens=1)
        return kept

    def _finish_parsing(self, parser: ResponseParser, output: TextUpdate) -> None:
        if parser.is_over and not self.hit_stop_string:
            # Whatever ended the sequence came later: a token behind it or the limit of tokens.
            output.finish_reason, output.stop_reason = "stop", None
        if output.finish_reason is not None:
            parser.finish()
            if output.finish_reason == "stop" and parser.num_whole_calls:
                output.finish_reason = "tool_calls"
        output.parsed = parser.take()

    def _keep(self, text: str) -> str:
        """Adds text; returns the part, held-back text included, that no stop string cuts off."""
        self._num_chars += len(text)
        if self._stops is None or not text or self._num_tokens <= self._params.min_tokens:
            return text
        num_before = self._num_chars - len(text) - self._stops.num_held
        kept = self._stops.feed(text)
        if self._stops.hit is not None:
            self.hit_stop_string = True
            self._num_chars = num_before + len(kept)
        return kept

    def _release_logprobs(self, released: list[TokenLogprob], finished: bool) -> None:
        num_held = 0 if self._stops is None else self._stops.num_held
        num_sure = self._num_chars - num_held
        while self._waiting:
            offset, in_text, chosen, top = self._waiting[0]
            if not finished and num_held and offset >= num_sure:
                break
            self._waiting.popleft()
            if self.hit_stop_string and offset >= num_sure:
                offset, in_text = num_sure, False
            released.append(TokenLogprob(chosen, top, offset, in_text))

    def _hides_last(self, update: SequenceUpdate) -> bool:
        return update.stop_token_id >= 0 and not self._params.include_stop_str_in_output

    def _stop_reason(self, update: SequenceUpdate) -> int | None:
        token_id = update.stop_token_id
        if token_id < 0:
            return None
        asked_for = token_id in (self._params.stop_token_ids or ())
        return token_id if asked_for or token_id not in self._eos_token_ids else None
