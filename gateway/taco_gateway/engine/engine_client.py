"""The interface of an engine for the text layer: token ids in, token ids out."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from taco_proto.licenses import LICENSE_INVALID, LICENSE_MESSAGE
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest, ModelInfo


class EngineError(Exception):
    """A request that failed as a whole.

    Attributes:
        code: HTTP status: 400, 404 (no worker has the adapter), 409, 429 (queue full, quota used
            up), 500, 503 (no engine), 504 (deadline passed).
        message: one sentence for the client.
        retry_after: seconds after which the same request may succeed; 0: unknown.
        reason: machine-readable, such as `LICENSE_INVALID`; empty: `code` says everything.
        param: the field of the request that is at fault, as the client wrote it; None: not known,
            or several together.
    """

    def __init__(self, code: int, message: str, retry_after: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.reason = reason
        self.param: str | None = None


def not_licensed() -> EngineError:
    """The error of a request that no worker may run, for lack of a license."""
    return EngineError(503, LICENSE_MESSAGE, reason=LICENSE_INVALID)


@dataclass(slots=True)
class SequenceUpdate:
    """New tokens of one sequence, or its end.

    Attributes:
        index: number of the sequence in its request.
        token_ids: the new tokens, including a token that ended the sequence.
        finish_reason: RUNNING until the sequence has ended.
        stop_token_id: the token that ended the sequence; -1: it ended otherwise.
        num_cached_tokens: prompt tokens found in the prefix cache.
        logprobs: one row a token of `token_ids`; None: not requested.
        prompt_logprobs: one row a prompt position, after the last position of the update before;
            the first row of a request belongs to position 1. Only of sequence 0, if requested.
        queue_seconds: seconds from the request's arrival at the scheduler to its first step; only
            on the first update.
    """

    index: int
    token_ids: list[int]
    finish_reason: int = FinishReason.RUNNING
    stop_token_id: int = -1
    num_cached_tokens: int = 0
    logprobs: LogprobColumns | None = None
    prompt_logprobs: LogprobColumns | None = None
    queue_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters of the schedulers; `prometheus` is their metrics page in exposition format."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_free_blocks: int
    num_blocks: int
    num_workers: int
    prometheus: bytes = b""


class UpdateStream(Protocol):
    """The updates of one request. Ends with the last sequence; raises `EngineError`.

    A reader that stops early calls `close`, which is idempotent and does not wait.
    """

    def __aiter__(self) -> AsyncIterator[SequenceUpdate]: ...

    async def __anext__(self) -> SequenceUpdate: ...

    def read_in_bulk(self) -> None:
        """Wakes the reader only for many tokens, or for the last ones. It then gets them at once,
        which costs a fraction of the work for each."""

    def cancel(self, index: int) -> None:
        """Cancels one sequence; no more updates of it follow."""

    def close(self) -> None:
        """Cancels all sequences that still run."""


class EngineClient(Protocol):
    """An engine: token ids in, token ids out. Belongs to one event loop."""

    def model_info(self) -> ModelInfo | None:
        """The served model; None or `ready=False` while no worker serves it."""

    def generate(self, request: GenerateRequest) -> UpdateStream:
        """Submits a request; the client replaces its handle, which is 0.

        It does not raise: every error is raised by the stream.
        """

    async def stats(self) -> EngineStats:
        """Raises:
        EngineError: the scheduler does not answer (503).
        """

    async def close(self) -> None:
        """Fails running requests with 503 and disconnects."""
