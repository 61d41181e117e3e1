"""Row errors: a sequence fails in a step that succeeds for the other sequences."""

import logging
from collections.abc import Callable

from taco_proto.steps import RowError, RowErrorCode
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.sequence import Request
from taco_scheduler.state.worker_state import WorkerState

# Longer messages of a worker are cut before the client sees them.
MAX_MESSAGE_CHARS = 500
_INTERNAL_ERROR = 500
# The request asks for a text that cannot be generated: the worker and the model are in order.
_REQUEST_ERRORS = frozenset(
    {
        RowErrorCode.NO_ALLOWED_TOKEN,
        RowErrorCode.GRAMMAR_LIMIT,
        RowErrorCode.INVALID_ARGUMENTS,
    }
)
_BAD_REQUEST = 400

logger = logging.getLogger("taco.scheduler")


def end_failed_sequences(
    step: InFlightStep,
    errors: tuple[RowError, ...],
    worker: WorkerState,
    counters: Counters,
    fail: Callable[..., None],
) -> None:
    """Fail the request of each row error, and keep the failed sequences out of the cache.

    To be called before the step's output is committed. The sequences' rows in this step, and in
    later steps in flight, then have no owner and are dropped. Sequences that have ended are
    skipped.

    Args:
        step: the step of the errors; they have been checked against it.
        fail: ends a request with a status, a message and a reason.
    """
    generations = dict(zip(step.slots.tolist(), step.generations.tolist(), strict=True))
    for error in errors:
        sequence = worker.owner(error.slot, generations[error.slot])
        if sequence is None:
            continue
        request: Request = sequence.request
        counters.row_errors[error.code] += 1
        message = error.message[:MAX_MESSAGE_CHARS]
        # A mistake of a client is no event for an operator.
        logger.log(
            logging.INFO if error.code in _REQUEST_ERRORS else logging.ERROR,
            "request %s failed on worker %s: %s (%r)",
            request.request_id,
            worker.info.name,
            error.code.name.lower(),
            message,
        )
        if error.code in _REQUEST_ERRORS:  # its blocks are valid
            fail(request, _BAD_REQUEST, message, reason=error.code.name.lower())
            continue
        if sequence.table is not None:
            worker.blocks.discard_on_release(sequence.table)
        else:  # preempted: its blocks have been released to the cache
            worker.blocks.discard(sequence.tokens.tobytes(), request.namespace)
        fail(request, _INTERNAL_ERROR, message, reason=error.code.name.lower())
