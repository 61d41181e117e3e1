"""Why requests are refused."""

import math
from enum import StrEnum

from taco_proto.limits import MAX_RETRY_SECONDS, Limit


class RejectionReason(StrEnum):
    """Why a request was refused, as metrics name it."""

    INVALID = "invalid"
    QUEUE_FULL = "queue_full"
    REQUESTS = Limit.REQUESTS
    TOKENS = Limit.TOKENS
    CONCURRENT = Limit.CONCURRENT
    DEADLINE = "deadline"
    DRAINING = "draining"
    LICENSE = "license"


class RejectedError(Exception):
    """A request cannot be served.

    Attributes:
        code: an HTTP status.
        reason: for metrics.
        retry_after: whole seconds after which the same request may succeed, 1 to
            `MAX_RETRY_SECONDS`; 0: nothing is known of that.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        retry_after: float = 0.0,
        reason: RejectionReason = RejectionReason.INVALID,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = math.ceil(min(retry_after, MAX_RETRY_SECONDS))
