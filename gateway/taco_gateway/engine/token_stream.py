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

# A request with more unread token ids and log probabilities is cancelled.
MAX_BUFFERED_VALUES = 2**17
# As many steps of a request may be unread, however many values they have: they may all arrive
# before its reader runs.
MIN_BUFFERED_STEPS = 8
# Unread values at which a reader that does not hurry is woken.
BULK_VALUES = 64
# Unread updates beyond which the next one is merged at once, to save memory.
MAX_UNMERGED = 64
# Entries of log probabilities up to which updates are merged.
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
        self._max_buffered = max(MAX_BUFFERED_VALUES, MIN_BUFFERED_STEPS * _step_values(request))
        self._num_buffered = 0
        self._wakes_at = 0  # unread values
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
        run = self._take_run(update)
        self._num_buffered -= sum(map(_num_values, (update, *run)))
        _merge(update, run)
        if not self._pending:
            self._num_buffered = 0
        return update

    def _take_run(self, first: SequenceUpdate) -> list[SequenceUpdate]:
        """The unread updates that follow `first` and may be merged into it."""
        run: list[SequenceUpdate] = []
        num_entries = _num_entries(first)
        while self._pending and self._pending[0].index == first.index:
            num_entries += _num_entries(self._pending[0])
            if num_entries > MAX_MERGED_ENTRIES:
                break
            run.append(self._pending.popleft())
        return run

    def read_in_bulk(self) -> None:
        self._wakes_at = BULK_VALUES

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
        if len(self._pending) >= MAX_UNMERGED and _may_merge(self._pending[-1], update):
            _merge(self._pending[-1], [update])
        else:
            self._pending.append(update)
        self._num_buffered += _num_values(update)
        # Beam search emits its whole answer at once, which the request's checks limit.
        is_over = self._num_buffered > self._max_buffered
        if is_over and not self.request.sampling.use_beam_search:
            self.close()
            self.fail(
                EngineError(
                    503,
                    "The answer was cut: the client reads more slowly than the model writes, and "
                    f"{self._num_buffered} token ids and log probabilities are unread (limit "
                    f"{self._max_buffered}). Read faster, or ask for fewer log probabilities or "
                    "sequences.",
                )
            )
        if self._num_buffered >= self._wakes_at or not self._running:
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


def _step_values(request: GenerateRequest) -> int:
    """Values of a step in which each sequence has one token."""
    return request.sampling.num_outputs * (3 + (request.sampling.logprobs or 0))


def _num_values(update: SequenceUpdate) -> int:
    # Log probabilities of the prompt do not count: one step may bring more than the limit, and the
    # prompt's length bounds them.
    count = 1 + len(update.token_ids)
    if update.logprobs is not None:
        count += len(update.logprobs.token_ids)
    return count


def _num_entries(update: SequenceUpdate) -> int:
    columns = (update.logprobs, update.prompt_logprobs)
    return sum(each.token_ids.size for each in columns if each is not None)


def _may_merge(waiting: SequenceUpdate, update: SequenceUpdate) -> bool:
    """False where each merge would copy many entries, once for each step of a slow reader."""
    return waiting.index == update.index and _num_entries(waiting) <= MAX_MERGED_ENTRIES


def _merge(first: SequenceUpdate, later: list[SequenceUpdate]) -> None:
    """Merges later updates of the same sequence into its first one."""
    if not later:
        return
    for update in later:
        first.token_ids += update.token_ids
        first.num_cached_tokens = max(first.num_cached_tokens, update.num_cached_tokens)
    run = [first, *later]
    first.logprobs = _joined([each.logprobs for each in run])
    first.prompt_logprobs = _joined([each.prompt_logprobs for each in run])
    first.finish_reason = later[-1].finish_reason
    first.stop_token_id = later[-1].stop_token_id


def _joined(columns: list[LogprobColumns | None]) -> LogprobColumns | None:
    parts = [each for each in columns if each is not None]
    return concatenate(parts) if parts else None
