"""What the text layer needs of an engine, whichever link leads to it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from taco_proto.licenses import LICENSE_INVALID, LICENSE_MESSAGE
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest, ModelInfo


class EngineError(Exception):
    """A request that failed as a whole.

    Attributes:
        code: HTTP status: 400, 409, 429 (queue full, quota used up), 500, 503 (no engine), 504
            (deadline passed).
        message: one sentence for the client.
        retry_after: seconds after which the same request may succeed; 0: nothing is known of that.
        reason: machine-readable, such as `LICENSE_INVALID`; empty: `code` says all there is.
    """

    def __init__(self, code: int, message: str, retry_after: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.reason = reason


def not_licensed() -> EngineError:
    """No worker may take new requests."""
    return EngineError(503, LICENSE_MESSAGE, reason=LICENSE_INVALID)


@dataclass(slots=True)
class SequenceUpdate:
    """News of one sequence.

    Attributes:
        index: which sequence of the request.
        token_ids: its new tokens; the one that ended it is among them.
        finish_reason: RUNNING until the sequence has ended.
        stop_token_id: the token that ended it; -1 if it ended otherwise.
        num_cached_tokens: prompt tokens that were found in the prefix cache.
        logprobs: one row a token of `token_ids`; None if none were asked for.
        prompt_logprobs: one row a prompt position, going on where the update before ended; the very
            first row belongs to position 1. Only on the sequence of index 0, and only if asked for.
        queue_seconds: from the scheduler's receipt of the request to its first step; on the first
            update.
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
    """Counters of the scheduler; `prometheus` is its own page in exposition format."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_free_blocks: int
    num_blocks: int
    num_workers: int
    prometheus: bytes = b""


class UpdateStream(Protocol):
    """The news of one request. Ends when all its sequences have ended; raises `EngineError`.

    Whoever leaves it early calls `close`, which is idempotent and does not wait.
    """

    def __aiter__(self) -> AsyncIterator[SequenceUpdate]: ...

    async def __anext__(self) -> SequenceUpdate: ...

    def cancel(self, index: int) -> None:
        """Ends one sequence upstream; no more news of it."""

    def close(self) -> None:
        """Ends whatever still runs, upstream too."""


class EngineClient(Protocol):
    """An engine: token ids in, token ids out. Belongs to one event loop."""

    def model_info(self) -> ModelInfo | None:
        """The model that is served; None or `ready=False` while no worker serves it."""

    def generate(self, request: GenerateRequest) -> UpdateStream:
        """Submits a request; its handle is 0 and is given by the client.

        Never raises: what fails, fails in the stream.
        """

    async def stats(self) -> EngineStats:
        """Raises:
        EngineError: the scheduler does not answer (503).
        """

    async def close(self) -> None:
        """Fails what still runs with 503 and lets go of the engine."""
