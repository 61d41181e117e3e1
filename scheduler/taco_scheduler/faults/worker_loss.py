"""Worker loss: detects a stalled worker, and takes the sequences off a lost one.

`Engine.on_worker_lost` then assigns the sequences to other workers. They wait in the queue, with
the tokens that they have, if no worker is left.
"""

from dataclasses import dataclass

from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.sequence import Request, Status
from taco_scheduler.state.worker_state import WorkerState

# A step in flight may take this many times as long as the longest measured step.
STALL_FACTOR = 10.0
# The longest step counts half after this many steps: the first ones compile kernels.
STALL_HALF_LIFE = 1000


class StallDetector:
    """Sets the deadline of a worker's oldest step in flight by the longest of the last steps."""

    def __init__(self, step_timeout: float, *, is_enabled: bool) -> None:
        """`step_timeout`: seconds that every step may take."""
        self._step_timeout = step_timeout
        self._is_enabled = is_enabled
        self._longest_step = 0.0

    def note_step(self, seconds: float) -> None:
        """Record how long a step took."""
        self._longest_step = max(seconds, self._longest_step * 0.5 ** (1 / STALL_HALF_LIFE))

    def deadline(self, oldest: InFlightStep, last_output_at: float) -> float | None:
        """When the worker counts as lost unless it answers; None if stalls are not detected.

        Args:
            oldest: the oldest step in flight.
            last_output_at: when the output before it came.
        """
        if not self._is_enabled:
            return None
        patience = max(self._step_timeout, STALL_FACTOR * self._longest_step)
        return max(oldest.planned_at, last_output_at) + patience


@dataclass(frozen=True, slots=True)
class LostRequests:
    """Requests that were on a lost worker.

    Attributes:
        in_flight: the scheduler had sent a step for them.
        has_begun: those whose announced step the worker had begun.
    """

    in_flight: set[Request]
    has_begun: set[Request]


def release_lost_worker(worker: WorkerState) -> LostRequests:
    """Take all sequences off a lost worker; its KV is gone."""
    in_flight: set[Request] = set()
    has_begun: set[Request] = set()
    for step in worker.in_flight.steps:
        requests = {sequence.request for sequence in worker.sequences_in(step)}
        in_flight |= requests
        if step.step_id <= worker.in_flight.last_begun:
            has_begun |= requests
    for sequence in worker.release_all():
        sequence.status = Status.WAITING if sequence.candidates is None else Status.HELD
    return LostRequests(in_flight, has_begun)
