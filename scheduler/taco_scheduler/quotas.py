"""What a tenant may have a minute, and at a time. Beyond it a request is refused with 429."""

from taco_proto.limits import MINUTE, RETRY_CONCURRENT, Limit, too_long
from taco_proto.requests import GenerateRequest, Tenant
from taco_scheduler.admission import TOKEN_BYTES
from taco_scheduler.fair_share import FairShare
from taco_scheduler.refusals import Refusal, RefusedError


class Quotas:
    """The limits that requests bring along, kept for all gateways in one place."""

    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._usages: dict[str, _Usage] = {}

    def enter(self, tenant: Tenant) -> None:
        """A request has come."""
        self._usage_of(tenant).num_requests += 1

    def leave(self, tenant: Tenant) -> None:
        """A request has ended."""
        self._usage_of(tenant).num_requests -= 1

    def spend(self, message: GenerateRequest, now: float) -> None:
        """Counts a new request and its prompt. Its answer counts as it comes.

        Raises:
            RefusedError: 429; nothing has been counted.
        """
        self.check(message, now)
        usage = self._usage_of(message.tenant)
        if message.tenant.max_tokens_per_minute:
            usage.tokens.take(len(message.token_ids) // TOKEN_BYTES)
        if message.tenant.max_requests_per_minute:
            usage.requests.take(1)

    def check(self, message: GenerateRequest, now: float) -> None:
        """Whether a new request is within its tenant's quotas.

        Raises:
            RefusedError: 429.
        """
        tenant, usage = message.tenant, self._usage_of(message.tenant)
        num_tokens = len(message.token_ids) // TOKEN_BYTES
        limit = tenant.max_concurrent_requests
        if limit and usage.num_requests >= limit:
            raise _refusal(Limit.CONCURRENT, tenant, RETRY_CONCURRENT)
        if limit := tenant.max_requests_per_minute:
            usage.requests.refill(limit, now)
            if wait := usage.requests.seconds_until(1, limit):
                raise _refusal(Limit.REQUESTS, tenant, wait)
        if limit := tenant.max_tokens_per_minute:
            self._fair_share.meter()
            if (text := too_long(num_tokens, tenant)) is not None:
                raise RefusedError(429, text, reason=Refusal.TOKENS)
            usage.tokens.take(self._new_outputs(tenant, usage))
            usage.tokens.refill(limit, now)
            if wait := usage.tokens.seconds_until(num_tokens, limit):
                raise _refusal(Limit.TOKENS, tenant, wait)

    def _new_outputs(self, tenant: Tenant, usage: "_Usage") -> int:
        """Tokens that the tenant's requests got since this was asked last."""
        before, usage.num_outputs = usage.num_outputs, self._fair_share.outputs_of(tenant)
        return usage.num_outputs - before

    def _usage_of(self, tenant: Tenant) -> "_Usage":
        return self._usages.setdefault(tenant.name, _Usage())


class _Usage:
    """What a tenant has used.

    Attributes:
        num_outputs: tokens of answers that `tokens` has been told of.
    """

    __slots__ = ("num_outputs", "num_requests", "requests", "tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_outputs = 0
        self.requests = TokenBucket()
        self.tokens = TokenBucket()


class TokenBucket:
    """Fills at a limit a minute, and holds no more than a minute's worth.

    What has been used may exceed what was there: the bucket is in debt until it has filled again.
    """

    __slots__ = ("_level", "_updated_at")

    def __init__(self) -> None:
        self._level = 0.0
        self._updated_at: float | None = None

    def refill(self, limit: float, now: float) -> None:
        """`limit` may be another than the last time: it holds from now on."""
        if self._updated_at is None:  # full, but for what was used before there was a limit
            self._updated_at = now - MINUTE
            self._level = 0.0
        elapsed = max(0.0, now - self._updated_at)
        self._level = min(limit, self._level + elapsed * limit / MINUTE)
        self._updated_at = max(now, self._updated_at)

    def take(self, amount: float) -> None:
        self._level -= amount

    def seconds_until(self, amount: float, limit: float) -> float:
        """When so much will be there; 0: it is."""
        return max(0.0, amount - self._level) * MINUTE / limit


def _refusal(limit: Limit, tenant: Tenant, wait: float) -> RefusedError:
    reason = Refusal(limit)
    return RefusedError(429, limit.reached(tenant), retry_after=wait, reason=reason)
