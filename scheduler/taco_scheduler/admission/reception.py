"""What stands before the queue: quotas, bounds, and whom to refuse."""

from taco_proto.config import SchedulerConfig
from taco_proto.requests import GenerateRequest
from taco_scheduler.admission.admission_control import AdmissionQueue
from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.admission.rate_limits import RateLimits
from taco_scheduler.admission.validation import TOKEN_BYTES
from taco_scheduler.state.sequence import Request


class Reception:
    """Tells who may come in, and keeps count of who is there.

    Attributes:
        fair_share: what each tenant has had.
        lobby: the requests that have not run yet.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.fair_share = FairShare()
        self.admission_queue = AdmissionQueue(
            config.max_waiting_requests, config.max_waiting_tokens
        )
        self._quotas = RateLimits(self.fair_share)

    def share_of(self, message: GenerateRequest) -> Share:
        return self.fair_share.share_of(message.tenant, message.priority)

    def check(self, message: GenerateRequest, now: float) -> None:
        """Whether the queue and the tenant's quotas admit a new request; counts nothing.

        Raises:
            RejectedError: 429.
        """
        self.admission_queue.tick(now)
        if not _is_resubmission(message):
            self.admission_queue.make_room(
                self.share_of(message), len(message.token_ids) // TOKEN_BYTES
            )
            self._quotas.check(message, now)

    def make_room(self, message: GenerateRequest, now: float) -> list[Request]:
        """Counts a new request against its tenant's quotas; returns whom to refuse for it.

        Those that are resumed have paid and are let in.

        Raises:
            RejectedError: 429.
        """
        self.admission_queue.tick(now)
        if _is_resubmission(message):
            return []
        num_tokens = len(message.token_ids) // TOKEN_BYTES
        refused = self.admission_queue.make_room(self.share_of(message), num_tokens)
        self._quotas.spend(message, now)
        return refused

    def enter(self, request: Request) -> None:
        """A request has come."""
        self.fair_share.enter(request.share)
        self._quotas.enter(request.tenant)
        self.admission_queue.enter(request)

    def leave(self, request: Request) -> None:
        """A request has ended."""
        self.fair_share.leave(request.share)
        self._quotas.leave(request.tenant)
        if not request.admitted:
            self.admission_queue.leave(request, runs=False)


def _is_resubmission(message: GenerateRequest) -> bool:
    """It was counted before, by this scheduler or another one."""
    return any(message.emitted_token_ids) or message.quota_charged
