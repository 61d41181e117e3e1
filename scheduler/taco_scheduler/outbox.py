"""News of the engine for one client, gathered until the client takes it."""

from taco_proto.licenses import LICENSE_INVALID
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, OutputBatch, RequestError
from taco_scheduler.refusals import Refusal, RefusedError

# Rows, errors and entries of log probabilities. They cost about a dozen bytes each in the one
# message that a client gets of them, which may have 64 MiB; and a single step of a large token
# budget brings 22 a token where a prompt's log probabilities are asked for.
MAX_BUFFERED_VALUES = 4_000_000


class Outbox:
    """Everything a client has not taken yet, in one batch: steps are merged when the client is
    behind.

    Attributes:
        client: names the client in the engine's columns.
        overflowed: the client is hopelessly behind; its news was dropped and it must be closed.
    """

    __slots__ = ("_batch", "client", "overflowed")

    def __init__(self, client: int) -> None:
        self.client = client
        self.overflowed = False
        self._batch = OutputBatch()

    def __bool__(self) -> bool:
        return bool(self._batch)

    def take(self) -> OutputBatch:
        batch, self._batch = self._batch, OutputBatch()
        return batch

    def add_tokens(
        self,
        handles: list[int],
        indexes: list[int],
        num_tokens: list[int],
        token_ids: list[int],
        finish_reasons: list[int],
        stop_token_ids: list[int],
        num_cached_tokens: list[int],
        logprobs: LogprobColumns | None,
    ) -> None:
        """One row a sequence; `token_ids` are flat, sum(num_tokens)."""
        batch = self._batch
        if logprobs is not None and batch.logprobs is None:
            batch.logprobs = LogprobColumns(num_entries=[0] * len(batch.token_ids))
        if batch.logprobs is not None:
            _extend(batch.logprobs, logprobs, len(token_ids))
        batch.handles += handles
        batch.indexes += indexes
        batch.num_tokens += num_tokens
        batch.token_ids += token_ids
        batch.finish_reasons += finish_reasons
        batch.stop_token_ids += stop_token_ids
        batch.num_cached_tokens += num_cached_tokens
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
        self._check_size()

    def add_prompt_logprob(
        self, handle: int, position: int, row: tuple[list[int], list[float], list[int]]
    ) -> None:
        batch = self._batch
        batch.prompt_logprob_handles.append(handle)
        batch.prompt_logprob_positions.append(position)
        if batch.prompt_logprobs is None:
            batch.prompt_logprobs = LogprobColumns()
        batch.prompt_logprobs.append_row(*row)
        self._check_size()

    def add_error(
        self, handle: int, code: int, message: str, retry_after: int = 0, reason: str = ""
    ) -> None:
        """See `RequestError`."""
        self._batch.errors.append(RequestError(handle, code, message, retry_after, reason))
        self._check_size()

    def add_refusal(self, handle: int, refusal: RefusedError) -> None:
        reason = LICENSE_INVALID if refusal.reason is Refusal.LICENSE else ""
        self.add_error(handle, refusal.code, str(refusal), refusal.retry_after, reason)

    def _check_size(self) -> None:
        batch = self._batch
        num_values = len(batch.handles) + len(batch.errors)
        for columns in (batch.logprobs, batch.prompt_logprobs):
            if columns is not None:
                num_values += len(columns.num_entries) + len(columns.token_ids)
        if num_values > MAX_BUFFERED_VALUES:
            self.overflowed = True
            self._batch = OutputBatch()


def _extend(columns: LogprobColumns, news: LogprobColumns | None, num_rows: int) -> None:
    if news is None:
        columns.num_entries += [0] * num_rows
        return
    columns.num_entries += news.num_entries
    columns.token_ids += news.token_ids
    columns.logprobs += news.logprobs
    columns.ranks += news.ranks
