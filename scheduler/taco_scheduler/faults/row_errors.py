"""Ends the requests of sequences that failed in a step that succeeded for all others."""

import logging

from taco_proto.steps import RowError
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.sequence import Sequence
from taco_scheduler.state.worker_state import WorkerState

# The client is shown no more of a worker's message.
MAX_MESSAGE_CHARS = 500
_INTERNAL_ERROR = 500

logger = logging.getLogger("taco.scheduler")


def end_failed_sequences(
    step: InFlightStep,
    errors: tuple[RowError, ...],
    worker: WorkerState,
    requests: RequestRegistry,
    counters: Counters,
) -> None:
    """Fail the request of each row error; nothing of the failed sequence stays cached.

    To be called before the step's output is committed: the sequences' rows in it, and in later
    steps in flight, then belong to no one and are dropped. Sequences that have ended already are
    skipped.

    Args:
        step: the step that the errors belong to; they have been checked against it.
    """
    generations = dict(zip(step.slots.tolist(), step.generations.tolist(), strict=True))
    for error in errors:
        sequence = _owner(worker, error.slot, generations[error.slot])
        if sequence is None:
            continue
        request = sequence.request
        counters.row_errors[error.code] += 1
        message = error.message[:MAX_MESSAGE_CHARS]
        logger.error(
            "request %s failed on worker %s: %s (%r)",
            request.request_id,
            worker.info.name,
            error.code.name.lower(),
            message,
        )
        if sequence.table is not None:
            worker.blocks.discard_on_release(sequence.table)
        else:  # preempted: its blocks have been released to the cache
            worker.blocks.discard(sequence.tokens.tobytes(), request.namespace)
        requests.fail(request, _INTERNAL_ERROR, message, reason=error.code.name.lower())


def _owner(worker: WorkerState, slot: int, generation: int) -> Sequence | None:
    """The sequence that had the slot in the step, if it has not ended."""
    if worker.batch.slot_generation[slot] == generation:
        return worker.batch.owner(slot)
    return worker.preempted.get(generation)
