"""The open requests of one connection, to which the rows of an `OutputBatch` are handed out.

Every token passes here: a row costs a look-up, an append and at most one wake-up of its reader.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_gateway.engine.token_stream import TokenStream
from taco_proto import scheduler_pb2 as pb
from taco_proto.logprobs import LogprobColumns
from taco_proto.output_batch import (
    output_errors,
    output_logprobs,
    output_prompt_logprobs,
    output_rows,
)
from taco_proto.registry import DECODE_TOKENS
from taco_proto.requests import GenerateRequest

MAX_HANDLE = 2**32


class Upstream(Protocol):
    """Sends requests: a `ClientSession` of the scheduler, or a gRPC stream to one."""

    def submit(self, request: GenerateRequest) -> None: ...

    def cancel(self, handle: int, index: int | None = None) -> None: ...


class RequestTable:
    """The open requests of one connection to a scheduler, by handle.

    Attributes:
        load: estimated work of the requests, in prompt tokens.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.load = 0
        self._upstream = upstream
        self._num_missing: dict[int, int] = {}  # prompt tokens of requests without output
        self._streams: dict[int, TokenStream] = {}
        self._handles = itertools.count(1)

    def __iter__(self) -> Iterator[TokenStream]:
        return iter(tuple(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def generate(self, request: GenerateRequest) -> TokenStream:
        """Gives the request a handle and submits it."""
        stream = TokenStream(request, self._cancel)
        self.attach(stream)
        return stream

    def attach(self, stream: TokenStream) -> None:
        """Adds a request that is in no table, and submits the rest of it."""
        handle = next(h for i in self._handles if (h := i % MAX_HANDLE) not in self._streams)
        self._streams[handle] = stream
        if stream.has_no_output:
            self._num_missing[handle] = stream.num_missing_tokens
            self.load += stream.num_missing_tokens
        self.load += DECODE_TOKENS * stream.request.sampling.num_sequences
        self._upstream.submit(stream.rename(handle, self._cancel))

    def get(self, handle: int) -> TokenStream | None:
        return self._streams.get(handle)

    def remove(self, stream: TokenStream) -> None:
        """Removes a request that moves to another table; later outputs for it are dropped."""
        self._pop(stream.request.handle)

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
                if handle in self._num_missing:
                    self.load -= self._num_missing.pop(handle)
                if not stream.running:
                    self._pop(handle)
            start = end
        for handle, code, message, retry_after, reason in output_errors(batch):
            error = EngineError(code, message, retry_after, reason)
            if not takes_over(handle, error):
                failed = self._pop(handle)
                if failed is not None:
                    failed.fail(error)

    def fail_all(self, error: EngineError) -> None:
        for stream in self:
            self.fail(stream, error)

    def cancel_all(self, error: EngineError) -> None:
        """Fails all requests, and cancels them at the scheduler."""
        for stream in self:
            self._upstream.cancel(stream.request.handle)
            self.fail(stream, error)

    def fail(self, stream: TokenStream, error: EngineError) -> None:
        self.remove(stream)
        stream.fail(error)

    def _cancel(self, stream: TokenStream, index: int | None) -> None:
        handle = stream.request.handle
        self._upstream.cancel(handle, index)
        if not stream.running:
            self._pop(handle)

    def _pop(self, handle: int) -> TokenStream | None:
        stream = self._streams.pop(handle, None)
        if stream is not None:
            self.load -= DECODE_TOKENS * stream.request.sampling.num_sequences
            self.load -= self._num_missing.pop(handle, 0)
        return stream

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
    """Cuts columns of log probabilities into runs of rows, from the first to the last."""

    def __init__(self, columns: LogprobColumns) -> None:
        self._columns = columns
        self._offsets = columns.offsets.tolist()
        self._row = 0

    def take(self, num_rows: int) -> LogprobColumns | None:
        """The next rows; None if they are empty: this request asked for no log probabilities."""
        first_row = self._row
        self._row = first_row + num_rows
        first, last = self._offsets[first_row], self._offsets[self._row]
        if first == last:
            return None
        return self._columns.view(first_row, self._row, first, last)
