"""Admission control: queue limits, rate limits, and which request is rejected with 429."""

from typing import Generic

from taco_proto.config import SchedulerConfig
from taco_proto.limits import MAX_RETRY_SECONDS
from taco_proto.requests import GenerateRequest
from taco_scheduler.admission.drain_rate import DrainRate
from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.admission.rate_limits import RateLimits
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.admission.tenant_backlogs import RequestT, TenantBacklogs
from taco_scheduler.token_ids import TOKEN_BYTES


class AdmissionControl(Generic[RequestT]):
    """Admits or rejects requests, and counts the requests of each tenant.

    The admission queue holds the requests that have not run yet. Its limits, in requests and in
    prompt tokens, are shared by all tenants. While the queue has space, one tenant may use all of
    it. When it is full, a tenant whose backlog is smaller by its weight takes the place of the
    newest requests of the largest backlog. Interactive requests always take the place of offline
    requests.

    A request that lost its worker after its first token is counted, but never rejected.

    Attributes:
        fair_share: the token counter of each tenant.
        backlogs: the admission queue.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.fair_share = FairShare()
        self.backlogs: TenantBacklogs[RequestT] = TenantBacklogs(
            config.max_waiting_requests, config.max_waiting_tokens
        )
        self._max_requests = config.max_waiting_requests
        self._max_tokens = config.max_waiting_tokens
        self._rate_limits = RateLimits(self.fair_share)
        self._drain_rate = DrainRate()

    def share_of(self, message: GenerateRequest) -> Share:
        """The share of the request's tenant."""
        return self.fair_share.share_of(message.tenant, message.priority)

    def tick(self, now: float) -> None:
        """Measure how long requests have waited; to be called often."""
        self._drain_rate.tick(now, is_queue_empty=not self.backlogs.num_requests)

    def check(self, message: GenerateRequest, now: float) -> None:
        """Check a new request against the queue limits and rate limits; counts nothing.

        Raises:
            RejectedError: 429.
        """
        self.tick(now)
        if not _is_resubmission(message):
            self._victims(message)
            self._rate_limits.check(message, now)

    def admit(self, message: GenerateRequest, now: float) -> list[RequestT]:
        """Charge a new request to its tenant's rate limits.

        A resubmitted request was charged before and is always admitted.

        Returns:
            The waiting requests to reject in its place.

        Raises:
            RejectedError: 429; nothing has been charged.
        """
        self.tick(now)
        if _is_resubmission(message):
            return []
        victims = self._victims(message)
        self._rate_limits.charge(message, now)
        return victims

    def enter(self, request: RequestT) -> None:
        """Count an admitted request."""
        self.fair_share.enter(request.share)
        self._rate_limits.enter(request.tenant)
        self.backlogs.add(request)

    def note_running(self, request: RequestT) -> None:
        """Take a request that runs for the first time out of the queue."""
        self.backlogs.remove(request)
        self._drain_rate.count(request.num_prompt_tokens)

    def requeue(self, request: RequestT) -> None:
        """Count a request that lost its worker as waiting again."""
        self.backlogs.add(request)

    def leave(self, request: RequestT) -> None:
        """Take out a request that has ended."""
        self.fair_share.leave(request.share)
        self._rate_limits.leave(request.tenant)
        if not request.admitted:
            self.backlogs.remove(request)

    def queue_full_error(self, share: Share) -> RejectedError:
        """The error for a tenant's request that finds the queue full."""
        queue = self.backlogs
        message = (
            f"the queue is full: {queue.num_requests} requests with {queue.num_tokens} tokens wait"
        )
        wait = self.seconds_to_wait(share)
        return RejectedError(429, message, retry_after=wait, reason=RejectionReason.QUEUE_FULL)

    def seconds_to_wait(self, share: Share) -> float:
        """Estimated seconds until a tenant's backlog has left the queue.

        The tenant gets its part, by weight, of the rate at which prompts left the queue. Cached
        tokens count in the rate and in the backlog, so their part cancels out. The estimate is 0
        before the rate is known.
        """
        rate = self._drain_rate.tokens_per_second()
        if rate is None:
            return 0.0
        part = self.backlogs.weight_part(share)
        return self.backlogs.tokens_of(share) / (rate * part) if rate else MAX_RETRY_SECONDS

    def _victims(self, message: GenerateRequest) -> list[RequestT]:
        """The waiting requests to reject so that a new one can enter the queue.

        Raises:
            RejectedError: 429 for the new request itself.
        """
        share, num_tokens = self.share_of(message), len(message.token_ids) // TOKEN_BYTES
        queue = self.backlogs
        missing_requests = queue.num_requests + 1 - self._max_requests
        missing_tokens = queue.num_tokens + num_tokens - self._max_tokens
        if not queue.num_requests or (missing_requests <= 0 and missing_tokens <= 0):
            return []
        queue.note_growth(share)  # this request may have brought a smaller weight
        largest = queue.largest()
        load = queue.load(share, 1, num_tokens)
        if largest is not share and largest.is_offline >= share.is_offline:
            victims = queue.latest(largest, missing_requests, missing_tokens)
            freed = sum(victim.num_prompt_tokens for victim in victims)
            outranked = largest.is_offline > share.is_offline
            if victims and (outranked or queue.load(largest, -len(victims), -freed) >= load):
                return victims
        raise self.queue_full_error(share)


def _is_resubmission(message: GenerateRequest) -> bool:
    """Whether this scheduler or another one has charged the request before."""
    return any(message.emitted_token_ids) or message.quota_charged
