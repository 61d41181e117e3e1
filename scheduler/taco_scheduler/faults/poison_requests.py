"""Poison-request detection: finds the request that makes steps fail or workers crash.

A request that was in a failed step is *suspected* until it gets a token. The policy runs only one
suspected request at a time, on all workers together. So the next failure identifies the request.
"""

import logging
from collections.abc import Callable, Iterable, Set

from taco_scheduler.state.sequence import Request

# A request that was on this many crashed workers fails, even if it got tokens in between. It might
# crash one worker after another.
MAX_WORKER_CRASHES = 4
_INTERNAL_ERROR = 500
_MESSAGE = "the steps that ran this request failed again and again"

logger = logging.getLogger("taco.scheduler")


class PoisonRequestDetector:
    """Records failures by request, and fails a request that is in two failures in a row.

    Attributes:
        suspected: requests that were in a failed step and have got no token since.
    """

    def __init__(self, fail: Callable[[Request, int, str], None]) -> None:
        """`fail` ends a request with an HTTP status and a message."""
        self.suspected: set[Request] = set()
        self._fail = fail

    def on_step_failed(self, requests: Set[Request]) -> None:
        """Record a failed step of a worker that lives on.

        Args:
            requests: they were in the step.
        """
        self._record(requests, requests)

    def on_worker_crash(self, requests: Iterable[Request], has_begun: Set[Request]) -> None:
        """Record the crash of a worker.

        Args:
            requests: the scheduler had sent a step for them.
            has_begun: requests whose announced step the worker had begun. A suspected request
                whose step had not begun did not cause the crash: two workers may crash at once,
                just after a request moved from one to the other.
        """
        for request in requests:
            request.num_worker_crashes += 1
        self._record(requests, has_begun)

    def clear(self, request: Request) -> None:
        """Remove the suspicion: the request got a token or has ended."""
        self.suspected.discard(request)

    def _record(self, requests: Iterable[Request], has_begun: Set[Request]) -> None:
        for request in requests:
            is_second_failure = request in self.suspected and request in has_begun
            if is_second_failure or request.num_worker_crashes >= MAX_WORKER_CRASHES:
                logger.error("poison request %s fails", request.request_id)
                self._fail(request, _INTERNAL_ERROR, _MESSAGE)
            else:
                self.suspected.add(request)
