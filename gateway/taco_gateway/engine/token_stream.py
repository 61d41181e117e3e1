"""The tokens of one request as an async iterator: the buffer between the engine and its reader.

A reader that is behind finds its updates merged, so that only tokens accumulate. A request whose
reader stops reading is cancelled.
"""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_proto.logprobs import LogprobColumns, concatenate
from taco_proto.requests import FinishReason, GenerateRequest

# Unread token ids and log probabilities of a request at which it is cancelled.
MAX_BUFFERED_VALUES = 2**17
# Entries of log probabilities in an unread update up to which those of later steps are merged in.
MAX_MERGED_ENTRIES = 1024


class TokenStream:
    """The updates of one request as an async iterator of `SequenceUpdate`, for one reader.

    Attributes:
        request: the request as it was submitted.
        emitted: all tokens of each sequence so far.
        num_prompt_logprobs: prompt positions whose log probabilities have arrived.
        num_missing_tokens: prompt tokens that its scheduler is expected to compute; 0 if there was
            only one scheduler to choose.
        was_reassigned: it was withdrawn from a scheduler that had no worker or no license.
        quota_charged: a scheduler may have admitted it.
        queue_seconds: from its arrival at the scheduler to its first step; None: it has not run.
    """

    def __init__(
        self, request: GenerateRequest, on_cancel: Callable[["TokenStream", int | None], None]
    ) -> None:
        self.request = request
        self.emitted = [array("i") for _ in range(request.sampling.num_outputs)]
        self.num_prompt_logprobs = 0
        self.num_missing_tokens = 0
        self.was_reassigned = False
        self.quota_charged = False
        self.queue_seconds: float | None = None
        self._on_cancel = on_cancel
        deadline = request.deadline
        self._queue_timeout = None if deadline is None else deadline - time.monotonic()
        self._has_progressed = False  # tokens have arrived since it was assigned
        self._running = set(range(request.sampling.num_outputs))
        self._pending: deque[SequenceUpdate] = deque()
        self._num_buffered = 0
        self._touched = False
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def has_no_output(self) -> bool:
        """Whether no output has arrived yet: the scheduler has the whole prompt to compute."""
        return not self._touched

    def remainder(self) -> GenerateRequest:
        """The request to resubmit: with the tokens of each running sequence that have arrived, and
        the indexes of sequences that have ended.
        """
        indexes = range(len(self.emitted))
        ended = tuple(index for index in indexes if index not in self._running)
        emitted = tuple(
            self.emitted[index].tobytes() if index in self._running else b"" for index in indexes
        )
        return replace(
            self.request,
            emitted_token_ids=emitted if any(emitted) else (),
            finished_indexes=ended,
            quota_charged=self.quota_charged,
        )

    def rename(
        self, handle: int, on_cancel: Callable[["TokenStream", int | None], None]
    ) -> GenerateRequest:
        """Gives the request a handle in another table; returns the request to submit there."""
        self.request = replace(self.request, handle=handle)
        self._on_cancel = on_cancel
        return self.remainder()

    def restart_deadline(self, now: float) -> None:
        """Starts the queue timeout again after the request lost its scheduler.

        The deadline limits how long a request waits, not how long it runs: a request that ran gets
        the whole timeout again.
        """
        if self._queue_timeout is not None and self._has_progressed:
            self.request = replace(self.request, deadline=now + self._queue_timeout)
            self._has_progressed = False

    # ------------------------------------------------------------ the reader's side

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> SequenceUpdate:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self._running:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        update = self._pending.popleft()
        if not self._pending:
            self._num_buffered = 0
        return update

    def cancel(self, index: int) -> None:
        if index in self._running:
            self._running.discard(index)
            self._on_cancel(self, index)
            self._wake()
        self._pending = deque([update for update in self._pending if update.index != index])

    def close(self) -> None:
        if self._running:
            self._running.clear()
            self._on_cancel(self, None)
        self._pending.clear()
        self._wake()

    # ------------------------------------------------------------ the engine's side

    def push(self, update: SequenceUpdate) -> None:
        """Adds an update; dropped if its sequence has ended or was cancelled."""
        if update.index not in self._running:
            return
        self._has_progressed = True
        if not self._touched:
            self._touched, update.queue_seconds = True, self.queue_seconds
        self.emitted[update.index].extend(update.token_ids)
        if update.finish_reason != FinishReason.RUNNING:
            self._running.discard(update.index)
        if not (self._pending and _merge(self._pending[-1], update)):
            self._pending.append(update)
        self._num_buffered += _num_values(update)
        # Beam search emits its whole answer at once, which the request's checks limit.
        is_over = self._num_buffered > MAX_BUFFERED_VALUES
        if is_over and not self.request.sampling.use_beam_search:
            self.close()
            self.fail(EngineError(503, "The client does not read its answer."))
        self._wake()

    def push_prompt_logprobs(self, first_position: int, rows: LogprobColumns) -> None:
        """Adds the rows of consecutive prompt positions, without those that arrived before the
        request was resubmitted.
        """
        num_known = self.num_prompt_logprobs + 1 - first_position
        num_rows = rows.num_entries.size
        if 0 <= num_known < num_rows:
            self.num_prompt_logprobs = first_position + num_rows - 1
            (rows,) = rows.split([num_known, num_rows])
            self.push(SequenceUpdate(0, [], prompt_logprobs=rows))

    def fail(self, error: EngineError) -> None:
        """Fails the request; the reader gets its unread updates before the error."""
        self._running.clear()
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _num_values(update: SequenceUpdate) -> int:
    # Log probabilities of the prompt do not count: one step may bring more than the limit, and the
    # prompt's length bounds them.
    count = 1 + len(update.token_ids)
    if update.logprobs is not None:
        count += len(update.logprobs.token_ids)
    return count


def _merge(waiting: SequenceUpdate, update: SequenceUpdate) -> bool:
    """Merges `update` into an unread update of the same sequence; False if it cannot."""
    if waiting.index != update.index or _has_many_entries(waiting):
        return False
    waiting.token_ids.extend(update.token_ids)
    waiting.logprobs = _joined(waiting.logprobs, update.logprobs)
    waiting.prompt_logprobs = _joined(waiting.prompt_logprobs, update.prompt_logprobs)
    waiting.finish_reason = update.finish_reason
    waiting.stop_token_id = update.stop_token_id
    waiting.num_cached_tokens = max(waiting.num_cached_tokens, update.num_cached_tokens)
    return True


def _has_many_entries(update: SequenceUpdate) -> bool:
    """Whether each merge would copy many entries, once for each step that the reader is behind."""
    columns = (update.logprobs, update.prompt_logprobs)
    return any(c is not None and c.token_ids.size > MAX_MERGED_ENTRIES for c in columns)


def _joined(front: LogprobColumns | None, back: LogprobColumns | None) -> LogprobColumns | None:
    if front is None or back is None:
        return back if front is None else front
    return concatenate([front, back])
