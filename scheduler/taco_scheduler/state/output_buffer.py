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

    def __init__(self, client: int) -> None:
        self.client = client
        self.overflowed = False
        self._clear()

    def __bool__(self) -> bool:
        return bool(self._handles or self._error_handles or self._prompt_logprob_handles)

    def take(self) -> pb.OutputBatch:
        """All buffered outputs; the buffer is empty then."""
        batch = pb.OutputBatch(
            handles=self._handles,
            indexes=usual_column(self._indexes, 0),
            num_tokens=usual_column(self._num_tokens, 1),
            token_ids=self._token_ids,
            finish_reasons=usual_column(self._finish_reasons, 0),
            stop_token_ids=usual_column(self._stop_token_ids, -1),
            num_cached_tokens=usual_column(self._num_cached_tokens, 0),
            logprobs=_joined(self._logprobs),
            prompt_logprob_handles=self._prompt_logprob_handles,
            prompt_logprob_positions=self._prompt_logprob_positions,
            prompt_logprobs=_joined(self._prompt_logprobs),
            error_handles=self._error_handles,
            error_codes=self._error_codes,
            error_messages=self._error_messages,
            error_retry_after=self._error_retry_after,
            error_reasons=self._error_reasons,
            started_handles=self._started_handles,
            queue_seconds=self._queue_seconds,
        )
        self._clear()
        return batch

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
        if logprobs is not None or self._logprobs:
            if not self._logprobs and self._token_ids:
                self._logprobs.append(without_entries(len(self._token_ids)))
            logprobs = without_entries(len(token_ids)) if logprobs is None else logprobs
            self._logprobs.append(logprobs)
            self._num_values += logprobs.num_entries.size + logprobs.token_ids.size
        self._handles += handles
        self._indexes += indexes
        self._num_tokens += num_tokens
        self._token_ids += token_ids
        self._finish_reasons += finish_reasons
        self._stop_token_ids += stop_token_ids
        self._num_cached_tokens += num_cached_tokens
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
        self._started_handles.append(handle)
        self._queue_seconds.append(queue_seconds)

    def add_prompt_logprobs(
        self, handle: int, positions: Sequence[int], rows: LogprobColumns
    ) -> None:
        """Adds the rows of some positions of one prompt."""
        self._prompt_logprob_handles += [handle] * len(positions)
        self._prompt_logprob_positions += positions
        self._prompt_logprobs.append(rows)
        self._count(rows.num_entries.size + rows.token_ids.size)

    def add_error(
        self, handle: int, code: int, message: str, retry_after: int = 0, reason: str = ""
    ) -> None:
        """Adds the failure of a whole request: see `output_errors`."""
        self._error_handles.append(handle)
        self._error_codes.append(code)
        self._error_messages.append(message)
        self._error_retry_after.append(retry_after)
        self._error_reasons.append(reason)
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
        """Empties the columns, which are lists: they grow faster than those of the message."""
        self._handles: list[int] = []
        self._indexes: list[int] = []
        self._num_tokens: list[int] = []
        self._token_ids: list[int] = []
        self._finish_reasons: list[int] = []
        self._stop_token_ids: list[int] = []
        self._num_cached_tokens: list[int] = []
        self._logprobs: list[LogprobColumns] = []
        self._prompt_logprob_handles: list[int] = []
        self._prompt_logprob_positions: list[int] = []
        self._prompt_logprobs: list[LogprobColumns] = []
        self._error_handles: list[int] = []
        self._error_codes: list[int] = []
        self._error_messages: list[str] = []
        self._error_retry_after: list[int] = []
        self._error_reasons: list[str] = []
        self._started_handles: list[int] = []
        self._queue_seconds: list[float] = []
        self._num_values = 0


def _joined(parts: list[LogprobColumns]) -> pb.LogprobColumns | None:
    return logprobs_to_pb(concatenate(parts)) if parts else None
