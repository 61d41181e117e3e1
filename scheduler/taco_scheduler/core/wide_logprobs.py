"""The gate for requests that ask for the log probabilities of large parts of the vocabulary."""

from taco_proto.logprob_limits import is_wide
from taco_scheduler.state.sequence import Request, Sequence


class WideLogprobGate:
    """Runs one such request at a time, on all workers together.

    Several at once would fill the buffer of their client, which would then be disconnected.
    """

    def __init__(self) -> None:
        self._running: Request | None = None
        self._num_ended = 0

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence must wait until another one's request has ended."""
        self._forget_ended()
        running, request = self._running, sequence.request
        return running is not None and running is not request and is_wide(request.sampling)

    @property
    def generation(self) -> int:
        """See `Gate`."""
        self._forget_ended()
        return self._num_ended

    def note_running(self, request: Request) -> None:
        """Record that a sequence of the request has got a slot."""
        if is_wide(request.sampling):
            self._forget_ended()
            self._running = request

    def note_unassigned(self, request: Request) -> None:
        """Record that no worker can run the request now: others need not wait for it."""
        if self._running is request:
            self._open()

    def _forget_ended(self) -> None:
        if self._running is not None and not self._running.unfinished:
            self._open()

    def _open(self) -> None:
        self._running = None
        self._num_ended += 1
