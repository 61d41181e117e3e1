"""Hands the columns of an `OutputBatch` to the requests that they belong to.

Every token comes by here: a row costs a look-up, an append and at most one wake-up of the task that
reads. A reader that is behind finds its rows merged, so that nothing but tokens piles up.
"""

import asyncio
import itertools
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_proto import scheduler_pb2 as pb
from taco_proto.logprobs import LogprobColumns, concatenate
from taco_proto.output_batch import (
    output_errors,
    output_logprobs,
    output_prompt_logprobs,
    output_rows,
)
from taco_proto.requests import FinishReason, GenerateRequest

# A reader that lets so many token ids and log probabilities pile up is not reading any more.
MAX_BUFFERED_VALUES = 2**17
MAX_HANDLE = 2**32
# Entries of log probabilities in one unread update, to which those of later steps are added.
MAX_MERGED_ENTRIES = 1024


class Upstream(Protocol):
    """Where requests go: a `ClientSession` of the scheduler, or the gRPC stream to one."""

    def submit(self, request: GenerateRequest) -> None: ...

    def cancel(self, handle: int, index: int | None = None) -> None: ...


class TokenStream:
    """The news of one request as an async iterator of `SequenceUpdate`, for one reader.

    Attributes:
        request: what was submitted.
        emitted: all tokens of each sequence so far.
        num_prompt_logprobs: prompt positions whose log probabilities have come.
        num_missing_tokens: those that its scheduler is expected to compute before the first one of
            the answer; 0 where there is no choice of schedulers.
        was_taken_back: its scheduler had no worker, or no license, for it, and it went to another
            one.
        quota_charged: a scheduler may have let it in.
        queue_seconds: from the scheduler's receipt to the first step; None: it has not run yet.
    """

    def __init__(
        self, request: GenerateRequest, on_cancel: Callable[["TokenStream", int | None], None]
    ) -> None:
        self.request = request
        self.emitted = [array("i") for _ in range(request.sampling.num_sequences)]
        self.num_prompt_logprobs = 0
        self.num_missing_tokens = 0
        self.was_taken_back = False
        self.quota_charged = False
        self.queue_seconds: float | None = None
        self._on_cancel = on_cancel
        deadline = request.deadline
        self._patience = None if deadline is None else deadline - time.monotonic()
        self._has_progressed = False  # something has come since it got its place
        self._running = set(range(request.sampling.num_sequences))
        self._pending: deque[SequenceUpdate] = deque()
        self._num_buffered = 0
        self._touched = False
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def is_untouched(self) -> bool:
        """Nothing has come yet: a scheduler has the whole prompt to compute."""
        return not self._touched

    def remainder(self) -> GenerateRequest:
        """The request without what has come of it: the tokens of each sequence, and the sequences
        that have ended. An ended sequence needs no tokens.
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
        """It has a new place; returns what is to be submitted there."""
        self.request = replace(self.request, handle=handle)
        self._on_cancel = on_cancel
        return self.remainder()

    def wait_anew(self, now: float) -> None:
        """It has lost its place. A deadline limits how long a request waits, and not how long it
        runs: one that ran waits again, for as long as at first.
        """
        if self._patience is not None and self._has_progressed:
            self.request = replace(self.request, deadline=now + self._patience)
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
        """Adds news; those of a sequence that has ended or was cancelled are dropped."""
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
        if self._num_buffered > MAX_BUFFERED_VALUES:
            self.close()
            self.fail(EngineError(503, "The client does not read its answer."))
        self._wake()

    def push_prompt_logprobs(self, first_position: int, rows: LogprobColumns) -> None:
        """Adds the rows of consecutive prompt positions; those that came before (resubmission) are
        dropped.
        """
        num_known = self.num_prompt_logprobs + 1 - first_position
        num_rows = rows.num_entries.size
        if 0 <= num_known < num_rows:
            self.num_prompt_logprobs = first_position + num_rows - 1
            (rows,) = rows.split([num_known, num_rows])
            self.push(SequenceUpdate(0, [], prompt_logprobs=rows))

    def fail(self, error: EngineError) -> None:
        """Ends the request; what the reader has not read yet comes before the error."""
        self._running.clear()
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RequestTable:
    """The open requests of one link to a scheduler, by handle."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._streams: dict[int, TokenStream] = {}
        self._handles = itertools.count(1)

    def __iter__(self) -> Iterator[TokenStream]:
        return iter(tuple(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def generate(self, request: GenerateRequest) -> TokenStream:
        """Gives the request a handle and submits it."""
        stream = TokenStream(request, self._cancel)
        self.adopt(stream)
        return stream

    def adopt(self, stream: TokenStream) -> None:
        """Takes in a request that stands in no table, and submits what is left of it."""
        handle = next(h for i in self._handles if (h := i % MAX_HANDLE) not in self._streams)
        self._streams[handle] = stream
        self._upstream.submit(stream.rename(handle, self._cancel))

    def get(self, handle: int) -> TokenStream | None:
        return self._streams.get(handle)

    def remove(self, stream: TokenStream) -> None:
        """It goes to another table; what still comes of it here is dropped."""
        self._streams.pop(stream.request.handle, None)

    def dispatch(
        self,
        batch: pb.OutputBatch,
        takes_over: Callable[[int, EngineError], bool] = lambda handle, error: False,
    ) -> None:
        """Hands every open request its rows; rows of requests that are gone are dropped.

        Args:
            takes_over: is asked about each error; True: the caller deals with it, and the request
                does not fail.

        Raises:
            ValueError: columns of the message differ in length.
        """
        streams = self._streams
        for handle, seconds in zip(batch.started_handles, batch.queue_seconds, strict=True):
            if (started := streams.get(handle)) is not None:
                started.queue_seconds = seconds
        prompt_logprobs = output_prompt_logprobs(batch)
        if prompt_logprobs is not None:
            self._dispatch_prompt_logprobs(batch, prompt_logprobs)
        columns = output_logprobs(batch)
        logprobs = None if columns is None else _RowSlicer(columns)
        token_ids = list(batch.token_ids)
        start = 0
        for handle, index, count, finish_reason, stop_token_id, num_cached in output_rows(batch):
            end = start + count
            rows = None if logprobs is None else logprobs.take(count)
            stream = streams.get(handle)
            if stream is not None:
                stream.push(
                    SequenceUpdate(
                        index,
                        token_ids[start:end],
                        finish_reason,
                        stop_token_id,
                        num_cached,
                        rows,
                    )
                )
                if not stream.running:
                    streams.pop(handle, None)
            start = end
        for handle, code, message, retry_after, reason in output_errors(batch):
            error = EngineError(code, message, retry_after, reason)
            if not takes_over(handle, error):
                failed = streams.pop(handle, None)
                if failed is not None:
                    failed.fail(error)

    def fail_all(self, error: EngineError) -> None:
        for stream in self:
            self.fail(stream, error)

    def fail(self, stream: TokenStream, error: EngineError) -> None:
        self.remove(stream)
        stream.fail(error)

    def _cancel(self, stream: TokenStream, index: int | None) -> None:
        handle = stream.request.handle
        self._upstream.cancel(handle, index)
        if not stream.running:
            self._streams.pop(handle, None)

    def _dispatch_prompt_logprobs(self, batch: pb.OutputBatch, columns: LogprobColumns) -> None:
        slicer = _RowSlicer(columns)
        handles, positions = batch.prompt_logprob_handles, batch.prompt_logprob_positions
        start = 0
        for end in range(1, len(handles) + 1):
            if end < len(handles) and (handles[end], positions[end]) == (
                handles[end - 1],
                positions[end - 1] + 1,
            ):
                continue  # the same run of positions of one prompt
            rows = slicer.take(end - start)
            stream = self._streams.get(handles[start])
            if stream is not None and rows is not None:
                stream.push_prompt_logprobs(positions[start], rows)
            start = end


class _RowSlicer:
    """Cuts columns of log probabilities into runs of rows, front to back."""

    def __init__(self, columns: LogprobColumns) -> None:
        self._columns = columns
        self._offsets = columns.offsets.tolist()
        self._row = 0

    def take(self, num_rows: int) -> LogprobColumns | None:
        """The next rows; None where they are empty: another request asked, not this one."""
        first_row = self._row
        self._row = first_row + num_rows
        first, last = self._offsets[first_row], self._offsets[self._row]
        if first == last:
            return None
        return self._columns.view(first_row, self._row, first, last)


def _num_values(update: SequenceUpdate) -> int:
    # Those of the prompt do not count: a single step may bring more of them, and the prompt bounds
    # them.
    count = 1 + len(update.token_ids)
    if update.logprobs is not None:
        count += len(update.logprobs.token_ids)
    return count


def _merge(waiting: SequenceUpdate, update: SequenceUpdate) -> bool:
    """Adds `update` to news of the same sequence that has not been read yet, if it can be."""
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
    """Adding to it would copy a lot, once for each step that the reader is behind."""
    columns = (update.logprobs, update.prompt_logprobs)
    return any(c is not None and c.token_ids.size > MAX_MERGED_ENTRIES for c in columns)


def _joined(front: LogprobColumns | None, back: LogprobColumns | None) -> LogprobColumns | None:
    if front is None or back is None:
        return back if front is None else front
    return concatenate([front, back])
