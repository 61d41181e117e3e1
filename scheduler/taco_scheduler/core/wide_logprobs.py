"""The gate for requests that ask for the log probabilities of large parts of the vocabulary."""

from taco_proto.logprob_limits import is_wide
from taco_scheduler.state.sequence import Request, Sequence


class WideLogprobGate:
    """Runs one such request at a time, on all workers together.

    Several at once would fill the buffer of their client, which would then be disconnected.
    """

    def __init__(self) -> None:
        self._running: Request | None = None

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence must wait. If not, its request runs until it ends."""
        request = sequence.request
        if not is_wide(request.sampling) or self._running is request:
            return False
        if self._running is not None and self._running.unfinished:
            return True
        self._running = request
        return False
