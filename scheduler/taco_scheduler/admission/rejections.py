"""Rejections: the errors of requests that the scheduler does not run, and their reasons."""

import math
from enum import StrEnum

from taco_proto.limits import MAX_RETRY_SECONDS, Limit


class RejectionReason(StrEnum):
    """Reason of a rejection, as the metric `taco:rejections_total` labels it."""

    INVALID = "invalid"
    QUEUE_FULL = "queue_full"
    REQUESTS = Limit.REQUESTS
    TOKENS = Limit.TOKENS
    CONCURRENT = Limit.CONCURRENT
    DEADLINE = "deadline"
    DRAINING = "draining"
    LICENSE = "license"


class RejectedError(Exception):
    """The scheduler rejects a request.

    Attributes:
        code: HTTP status.
        reason: label of the rejection in metrics.
        retry_after: whole seconds after which the same request may succeed, 1 to
            `MAX_RETRY_SECONDS`; 0 if that is unknown.
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
