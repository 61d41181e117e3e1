"""Usage and latencies of one request: for its `usage` field, its log line and the metrics."""

from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

from taco_gateway.metrics import GatewayMetrics
from taco_gateway.protocol.responses import CompletionTokensDetails, PromptTokensDetails, Usage
from taco_gateway.text.output.output_processor import TextUpdate


class RequestStats:
    """Counts the updates of one request; a context manager for the time in which it generates.

    Args:
        arrival: time of the request's arrival, on `perf_counter`'s clock.
        sequences_per_prompt: choices `k·n … k·n + n - 1` belong to prompt k.

    Attributes:
        queue_seconds: from the scheduler's receipt to the first step; None: unknown.
        finish_reasons: of the sequences that have ended.
    """

    def __init__(self, metrics: GatewayMetrics, arrival: float, sequences_per_prompt: int) -> None:
        self.queue_seconds: float | None = None
        self.finish_reasons: list[str] = []
        self._metrics = metrics
        self._arrival = self._last = arrival
        self._n = sequences_per_prompt
        self._sequences: dict[int, _Sequence] = {}
        self._num_cached: dict[int, int] = {}  # by prompt
        self._num_prompt: dict[int, int] = {}
        self._num_reasoning = 0

    def __enter__(self) -> "RequestStats":
        self._metrics.num_active += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._metrics.num_active -= 1
        if self._sequences:
            self._metrics.e2e_latency.observe(self._last - self._arrival)

    def add(self, update: TextUpdate) -> None:
        """Counts one update: latencies, tokens and the end of a sequence."""
        now = self._last = perf_counter()
        num_tokens = len(update.token_ids)
        sequence = self._sequences.get(update.index)
        if sequence is None:
            sequence = self._begin_sequence(update, now)
        elif num_tokens:
            latency = self._metrics.inter_token_latency
            latency.observe((now - sequence.last) / num_tokens, num_tokens)
            sequence.last = now
            sequence.num_tokens += num_tokens
        if update.parsed is not None:
            self._num_reasoning += update.parsed.num_reasoning_tokens
        if update.queue_seconds is not None:
            self.queue_seconds = max(update.queue_seconds, self.queue_seconds or 0.0)
        if update.finish_reason is not None:
            self._end_sequence(sequence, update.finish_reason)

    def usage(self) -> Usage:
        """Usage so far: each prompt counts once, and all sequences count."""
        num_prompt = sum(self._num_prompt.values())
        num_completion = sum(sequence.num_tokens for sequence in self._sequences.values())
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=num_completion,
            total_tokens=num_prompt + num_completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._num_cached.values())),
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=self._num_reasoning),
        )

    def first_token_seconds(self) -> float | None:
        """Time to the first token; None: there was no token."""
        first = next(iter(self._sequences.values()), None)
        return None if first is None else first.first - self._arrival

    def _begin_sequence(self, update: TextUpdate, now: float) -> "_Sequence":
        if not self._sequences:
            self._metrics.time_to_first_token.observe(now - self._arrival)
        sequence = _Sequence(now, now, len(update.token_ids))
        self._sequences[update.index] = sequence
        prompt = update.index // self._n
        self._num_prompt[prompt] = update.num_prompt_tokens
        # A sibling finds the prompt of the same request in the cache. The lowest count is what was
        # cached before.
        cached = update.num_cached_tokens
        self._num_cached[prompt] = min(cached, self._num_cached.get(prompt, cached))
        return sequence

    def _end_sequence(self, sequence: "_Sequence", reason: str) -> None:
        self._metrics.sequence_finished(reason)
        self._metrics.generation_tokens.observe(sequence.num_tokens)
        self.finish_reasons.append(reason)
        if sequence.num_tokens > 1:
            seconds = (sequence.last - sequence.first) / (sequence.num_tokens - 1)
            self._metrics.time_per_output_token.observe(seconds)


@dataclass(slots=True)
class _Sequence:
    first: float
    last: float
    num_tokens: int
