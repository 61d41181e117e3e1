"""Reads `OutputBatch`, the message that carries the new tokens of all requests of one client.

The message itself is used from the scheduler's output buffer to the gateway's request table, over
gRPC and in one process alike: there is no dataclass beside it. A column whose rows all have the
usual value is empty in the message; these functions fill it in.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import logprobs_from_pb
from taco_proto.logprobs import LogprobColumns


def output_rows(batch: pb.OutputBatch) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(handle, index, num_tokens, finish_reason, stop_token_id, num_cached_tokens) of each row.

    Raises:
        ValueError: columns differ in length.
    """
    num_rows = len(batch.handles)
    return zip(
        batch.handles,
        _column(batch.indexes, 0, num_rows),
        _column(batch.num_tokens, 1, num_rows),
        _column(batch.finish_reasons, 0, num_rows),
        _column(batch.stop_token_ids, -1, num_rows),
        _column(batch.num_cached_tokens, 0, num_rows),
        strict=True,
    )


def output_errors(batch: pb.OutputBatch) -> Iterator[tuple[int, int, str, int, str]]:
    """(handle, code, message, retry_after, reason) of each request that failed as a whole.

    `code` is an HTTP status. `retry_after` is in seconds; 0: unknown. `reason` is machine-readable,
    such as `LICENSE_INVALID`; empty: `code` says everything.

    Raises:
        ValueError: columns differ in length.
    """
    return zip(
        batch.error_handles,
        batch.error_codes,
        batch.error_messages,
        batch.error_retry_after,
        # Older schedulers send no reasons.
        batch.error_reasons or [""] * len(batch.error_handles),
        strict=True,
    )


def output_logprobs(batch: pb.OutputBatch) -> LogprobColumns | None:
    """One row a token; None: no request asked for log probabilities."""
    return logprobs_from_pb(batch.logprobs) if batch.HasField("logprobs") else None


def output_prompt_logprobs(batch: pb.OutputBatch) -> LogprobColumns | None:
    """One row a prompt position; None: the batch has none."""
    return logprobs_from_pb(batch.prompt_logprobs) if batch.HasField("prompt_logprobs") else None


def usual_column(column: list[int], usual: int) -> list[int]:
    """The column as it travels: empty if every row has the usual value."""
    return [] if column.count(usual) == len(column) else column


def _column(column: Sequence[int], usual: int, num_rows: int) -> Iterator[int]:
    return iter(column) if column else repeat(usual, num_rows)
