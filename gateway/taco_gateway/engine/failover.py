"""Failover: requests leave a scheduler that cannot serve them, and wait for another one.

A request whose scheduler dies, drains, or has lost its last worker is unassigned. It is submitted
again to another scheduler, with the tokens that the HTTP client already has of each sequence. The
stream pauses and continues; the restart of the only scheduler is a pause, too.
"""

import time
from collections.abc import Iterator

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.scheduler_link import SchedulerLink
from taco_gateway.engine.token_stream import TokenStream
from taco_proto.licenses import LICENSE_INVALID
from taco_proto.requests import GenerateRequest

_LOST = EngineError(503, "The scheduler was lost.")


class UnassignedRequests:
    """Open requests without a scheduler: new ones, and those that left theirs.

    Attributes:
        table: the requests.
    """

    def __init__(self) -> None:
        self.table = RequestTable(_NoScheduler())

    def __iter__(self) -> Iterator[TokenStream]:
        return iter(self.table)

    def detach(self, stream: TokenStream, link: SchedulerLink) -> None:
        """Moves a request here from the scheduler that it was assigned to."""
        stream.restart_deadline(time.monotonic())
        link.requests.remove(stream)
        self.table.attach(stream)

    def detach_all(self, link: SchedulerLink) -> None:
        """Moves the requests of a lost scheduler here."""
        for stream in link.requests:
            stream.quota_charged = True
            self.detach(stream, link)

    def withdraw(self, link: SchedulerLink) -> None:
        """Withdraws the requests of a scheduler that has no worker while another one has.

        Each request is withdrawn once at most. A poison request, which crashes workers, must not
        reach the workers of every scheduler: each scheduler counts only its own crashes.
        """
        for stream in link.requests:
            if not stream.was_reassigned:
                stream.was_reassigned = stream.quota_charged = True
                link.cancel(stream.request.handle)
                self.detach(stream, link)

    def fail_expired(self, *, is_lost: bool) -> None:
        """Fails requests whose deadline has passed; `is_lost`: those without a deadline, too."""
        now = time.monotonic()
        for stream in self.table:
            deadline = stream.request.deadline
            if deadline is not None and now > deadline:
                self.table.fail(stream, EngineError(504, "No engine came in time."))
            elif deadline is None and is_lost:
                self.table.fail(stream, _LOST)


def may_reassign(stream: TokenStream, error: EngineError, *, has_others: bool) -> bool:
    """Whether a request that one scheduler rejected may be assigned to another one.

    A request without a license moves only to a scheduler with one, and only once, so that it cannot
    go in circles.

    Args:
        has_others: other schedulers are usable.
    """
    if error.reason != LICENSE_INVALID:
        return True
    if stream.was_reassigned or not has_others:
        return False
    stream.was_reassigned = True
    return True


class _NoScheduler:
    """The upstream of unassigned requests: sends nothing."""

    def submit(self, request: GenerateRequest) -> None:
        pass

    def cancel(self, handle: int, index: int | None = None) -> None:
        pass
