"""Buffers the outputs of one client (a gateway, or the engine's own process) until it takes them.

This is the scheduler's backpressure: the engine never waits for a client. The outputs of several
steps are merged into one message while a client is slow, and a client that falls too far behind is
disconnected.
"""

from collections.abc import Sequence

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import logprobs_to_pb
from taco_proto.licenses import LICENSE_INVALID
from taco_proto.logprobs import LogprobColumns, concatenate, without_entries
from taco_proto.output_batch import usual_column
from taco_proto.requests import FinishReason
from taco_scheduler.admission.rejections import RejectedError, RejectionReason

# Rows, errors and entries of log probabilities. Each costs about a dozen bytes of the message, of
# which the limit is 64 MiB. One step with a large token budget adds 22 values a prompt token if
# prompt log probabilities are requested.
MAX_BUFFERED_VALUES = 4_000_000


class OutputBuffer:
    """The outputs that a client has not taken yet, as the columns of one `OutputBatch`.

    Attributes:
        client: the client's number in the engine's columns.
        overflowed: the client fell too far behind; its outputs were dropped and it must be closed.
    """

    __slots__ = ("_columns", "_num_values", "client", "overflowed")

    def __init__(self, client: int) -> None:
        self.client = client
        self.overflowed = False
        self._clear()

    def __bool__(self) -> bool:
        columns = self._columns
        return bool(columns.handles or columns.error_handles or columns.prompt_logprob_handles)

    def take(self) -> pb.OutputBatch:
        """All buffered outputs; the buffer is empty then."""
        columns = self._columns
        self._clear()
        return columns.to_pb()

    def add_tokens(
        self,
        handles: list[int],
        indexes: list[int],
        num_tokens: list[int],
        finish_reasons: list[int],
        stop_token_ids: list[int],
        num_cached_tokens: list[int],
        *,
        token_ids: list[int],
        logprobs: LogprobColumns | None,
    ) -> None:
        """Adds one row a sequence.

        Args:
            token_ids: flat, sum(num_tokens).
            logprobs: one row a token; None: no request asked for log probabilities.
        """
        columns = self._columns
        if logprobs is not None or columns.logprobs:
            if not columns.logprobs and columns.token_ids:
                columns.logprobs.append(without_entries(len(columns.token_ids)))
            logprobs = without_entries(len(token_ids)) if logprobs is None else logprobs
            columns.logprobs.append(logprobs)
            self._num_values += logprobs.num_entries.size + logprobs.token_ids.size
        columns.handles += handles
        columns.indexes += indexes
        columns.num_tokens += num_tokens
        columns.token_ids += token_ids
        columns.finish_reasons += finish_reasons
        columns.stop_token_ids += stop_token_ids
        columns.num_cached_tokens += num_cached_tokens
        self._count(len(handles))

    def add_end(
        self,
        handle: int,
        index: int,
        reason: FinishReason,
        stop_token_id: int,
        num_cached_tokens: int,
    ) -> None:
        """Adds the end of a sequence without a new token."""
        self.add_tokens(
            [handle],
            [index],
            [0],
            [reason],
            [stop_token_id],
            [num_cached_tokens],
            token_ids=[],
            logprobs=None,
        )

    def add_start(self, handle: int, queue_seconds: float) -> None:
        """A request's first step was planned, `queue_seconds` after the request arrived."""
        self._columns.started_handles.append(handle)
        self._columns.queue_seconds.append(queue_seconds)

    def add_prompt_logprobs(
        self, handle: int, positions: Sequence[int], rows: LogprobColumns
    ) -> None:
        """Adds the rows of some positions of one prompt."""
        columns = self._columns
        columns.prompt_logprob_handles += [handle] * len(positions)
        columns.prompt_logprob_positions += positions
        columns.prompt_logprobs.append(rows)
        self._count(rows.num_entries.size + rows.token_ids.size)

    def add_error(
        self, handle: int, code: int, message: str, retry_after: int = 0, reason: str = ""
    ) -> None:
        """Adds the failure of a whole request: see `output_errors`."""
        columns = self._columns
        columns.error_handles.append(handle)
        columns.error_codes.append(code)
        columns.error_messages.append(message)
        columns.error_retry_after.append(retry_after)
        columns.error_reasons.append(reason)
        self._count(1)

    def add_rejection(self, handle: int, rejection: RejectedError) -> None:
        """Adds the failure of a request that admission control rejected."""
        reason = LICENSE_INVALID if rejection.reason is RejectionReason.LICENSE else ""
        self.add_error(handle, rejection.code, str(rejection), rejection.retry_after, reason)

    def _count(self, num_values: int) -> None:
        self._num_values += num_values
        if self._num_values > MAX_BUFFERED_VALUES:
            self.overflowed = True
            self._clear()

    def _clear(self) -> None:
        self._columns = _Columns()
        self._num_values = 0


class _Columns:
    """The columns of an `OutputBatch` while they grow: lists grow faster than the message's."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.indexes: list[int] = []
        self.num_tokens: list[int] = []
        self.token_ids: list[int] = []
        self.finish_reasons: list[int] = []
        self.stop_token_ids: list[int] = []
        self.num_cached_tokens: list[int] = []
        self.logprobs: list[LogprobColumns] = []
        self.prompt_logprob_handles: list[int] = []
        self.prompt_logprob_positions: list[int] = []
        self.prompt_logprobs: list[LogprobColumns] = []
        self.error_handles: list[int] = []
        self.error_codes: list[int] = []
        self.error_messages: list[str] = []
        self.error_retry_after: list[int] = []
        self.error_reasons: list[str] = []
        self.started_handles: list[int] = []
        self.queue_seconds: list[float] = []

    def to_pb(self) -> pb.OutputBatch:
        return pb.OutputBatch(
            handles=self.handles,
            indexes=usual_column(self.indexes, 0),
            num_tokens=usual_column(self.num_tokens, 1),
            token_ids=self.token_ids,
            finish_reasons=usual_column(self.finish_reasons, 0),
            stop_token_ids=usual_column(self.stop_token_ids, -1),
            num_cached_tokens=usual_column(self.num_cached_tokens, 0),
            logprobs=_joined(self.logprobs),
            prompt_logprob_handles=self.prompt_logprob_handles,
            prompt_logprob_positions=self.prompt_logprob_positions,
            prompt_logprobs=_joined(self.prompt_logprobs),
            error_handles=self.error_handles,
            error_codes=self.error_codes,
            error_messages=self.error_messages,
            error_retry_after=self.error_retry_after,
            error_reasons=self.error_reasons,
            started_handles=self.started_handles,
            queue_seconds=self.queue_seconds,
        )


def _joined(parts: list[LogprobColumns]) -> pb.LogprobColumns | None:
    return logprobs_to_pb(concatenate(parts)) if parts else None
