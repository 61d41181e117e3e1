"""News of the engine for one client, gathered until the client takes it."""

from collections.abc import Sequence

from taco_proto.licenses import LICENSE_INVALID
from taco_proto.logprobs import LogprobColumns, concatenate, without_entries
from taco_proto.requests import FinishReason, OutputBatch, RequestError
from taco_scheduler.admission.rejections import RejectedError, RejectionReason

# Rows, errors and entries of log probabilities. They cost about a dozen bytes each in the one
# message that a client gets of them, which may have 64 MiB; and a single step of a large token
# budget brings 22 a token where a prompt's log probabilities are asked for.
MAX_BUFFERED_VALUES = 4_000_000


class OutputBuffer:
    """Everything a client has not taken yet, in one batch: steps are merged when the client is
    behind.

    Attributes:
        client: names the client in the engine's columns.
        overflowed: the client is hopelessly behind; its news was dropped and it must be closed.
    """

    __slots__ = ("_batch", "_logprobs", "_num_values", "_prompt_logprobs", "client", "overflowed")

    def __init__(self, client: int) -> None:
        self.client = client
        self.overflowed = False
        self._clear()

    def __bool__(self) -> bool:
        return bool(self._batch)

    def take(self) -> OutputBatch:
        batch = self._batch
        if self._logprobs:
            batch.logprobs = concatenate(self._logprobs)
        if self._prompt_logprobs:
            batch.prompt_logprobs = concatenate(self._prompt_logprobs)
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
        """One row a sequence; `token_ids` are flat, sum(num_tokens); `logprobs` have a row a
        token.
        """
        batch = self._batch
        if logprobs is not None or self._logprobs:
            if not self._logprobs and batch.token_ids:
                self._logprobs.append(without_entries(len(batch.token_ids)))
            logprobs = without_entries(len(token_ids)) if logprobs is None else logprobs
            self._logprobs.append(logprobs)
            self._num_values += logprobs.num_entries.size + logprobs.token_ids.size
        batch.handles += handles
        batch.indexes += indexes
        batch.num_tokens += num_tokens
        batch.token_ids += token_ids
        batch.finish_reasons += finish_reasons
        batch.stop_token_ids += stop_token_ids
        batch.num_cached_tokens += num_cached_tokens
        self._num_values += len(handles)
        self._check_size()

    def add_end(
        self,
        handle: int,
        index: int,
        reason: FinishReason,
        stop_token_id: int,
        num_cached_tokens: int,
    ) -> None:
        """A sequence ended without a new token."""
        batch = self._batch
        batch.handles.append(handle)
        batch.indexes.append(index)
        batch.num_tokens.append(0)
        batch.finish_reasons.append(reason)
        batch.stop_token_ids.append(stop_token_id)
        batch.num_cached_tokens.append(num_cached_tokens)
        self._num_values += 1
        self._check_size()

    def add_start(self, handle: int, queue_seconds: float) -> None:
        """A request's first step was planned, `queue_seconds` after the request had come."""
        self._batch.started_handles.append(handle)
        self._batch.queue_seconds.append(queue_seconds)

    def add_prompt_logprobs(
        self, handle: int, positions: Sequence[int], rows: LogprobColumns
    ) -> None:
        """Rows of some positions of one prompt."""
        self._batch.prompt_logprob_handles += [handle] * len(positions)
        self._batch.prompt_logprob_positions += positions
        self._prompt_logprobs.append(rows)
        self._num_values += rows.num_entries.size + rows.token_ids.size
        self._check_size()

    def add_error(
        self, handle: int, code: int, message: str, retry_after: int = 0, reason: str = ""
    ) -> None:
        """See `RequestError`."""
        self._batch.errors.append(RequestError(handle, code, message, retry_after, reason))
        self._num_values += 1
        self._check_size()

    def add_rejection(self, handle: int, refusal: RejectedError) -> None:
        reason = LICENSE_INVALID if refusal.reason is RejectionReason.LICENSE else ""
        self.add_error(handle, refusal.code, str(refusal), refusal.retry_after, reason)

    def _check_size(self) -> None:
        if self._num_values > MAX_BUFFERED_VALUES:
            self.overflowed = True
            self._clear()

    def _clear(self) -> None:
        self._batch = OutputBatch()
        self._logprobs: list[LogprobColumns] = []  # joined when they are taken
        self._prompt_logprobs: list[LogprobColumns] = []
        self._num_values = 0
