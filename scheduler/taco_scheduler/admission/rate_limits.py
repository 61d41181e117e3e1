"""Rate limits: a tenant's requests and tokens a minute, and its concurrent requests.

A request above a limit is rejected with 429.
"""

from collections import deque

from taco_proto.limits import MINUTE, RETRY_CONCURRENT, Limit, too_long
from taco_proto.requests import GenerateRequest, Tenant
from taco_scheduler.admission.fair_share import FairShare, Share
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.token_ids import TOKEN_BYTES


class RateLimits:
    """Enforces the limits that requests carry, for all gateways together."""

    def __init__(self, fair_share: FairShare) -> None:
        self._fair_share = fair_share
        self._usages: dict[str, _Usage] = {}
        self._limited: deque[str] = deque()  # tenants to forget once their buckets are full

    def enter(self, tenant: Tenant) -> None:
        """Count an admitted request."""
        self._usage_of(tenant).num_requests += 1

    def leave(self, tenant: Tenant) -> None:
        """Count a request that has ended."""
        usage = self._usages[tenant.name]
        usage.num_requests -= 1
        if usage.num_requests == 0 and not usage.is_listed:
            del self._usages[tenant.name]

    def charge(self, message: GenerateRequest, now: float) -> None:
        """Charge a new request and its prompt. Output tokens are charged as they come.

        Raises:
            RejectedError: 429; nothing has been counted.
        """
        name = message.tenant.name
        usage = self._usages.get(name) or _Usage()
        self._check(message, usage, now)
        if message.tenant.max_tokens_per_minute:
            usage.tokens.take(len(message.token_ids) // TOKEN_BYTES)
        if message.tenant.max_requests_per_minute:
            usage.requests.take(1)
        if usage.is_limited:
            usage.tenant = message.tenant
            if name not in self._usages:
                self._usages[name] = usage
            if not usage.is_listed:
                usage.is_listed = True
                self._limited.append(name)
            self._forget_idle(now)

    def check(self, message: GenerateRequest, now: float) -> None:
        """Check a new request against its tenant's limits.

        Raises:
            RejectedError: 429.
        """
        self._check(message, self._usages.get(message.tenant.name) or _Usage(), now)

    @property
    def num_tenants(self) -> int:
        """Tenants whose usage is remembered."""
        return len(self._usages)

    def _check(self, message: GenerateRequest, usage: "_Usage", now: float) -> None:
        tenant = message.tenant
        num_tokens = len(message.token_ids) // TOKEN_BYTES
        limit = tenant.max_concurrent_requests
        if limit and usage.num_requests >= limit:
            raise _rejection(Limit.CONCURRENT, tenant, RETRY_CONCURRENT)
        if limit := tenant.max_requests_per_minute:
            usage.requests.refill(limit, now)
            if wait := usage.requests.seconds_until(1, limit):
                raise _rejection(Limit.REQUESTS, tenant, wait)
        if limit := tenant.max_tokens_per_minute:
            self._fair_share.meter()
            if (text := too_long(num_tokens, tenant)) is not None:
                raise RejectedError(429, text, reason=RejectionReason.TOKENS)
            self._take_outputs(tenant, usage)
            usage.tokens.refill(limit, now)
            if wait := usage.tokens.seconds_until(num_tokens, limit):
                raise _rejection(Limit.TOKENS, tenant, wait)

    def _take_outputs(self, tenant: Tenant, usage: "_Usage") -> None:
        """Charge the output tokens since the last call."""
        usage.shares.update(self._fair_share.shares_of(tenant))
        num_outputs = sum(share.num_outputs for share in usage.shares)
        usage.tokens.take(num_outputs - usage.num_outputs)
        usage.num_outputs = num_outputs

    def _forget_idle(self, now: float) -> None:
        """Examine two limited tenants in turn, and forget those with full buckets.

        Each new request adds at most one tenant, so every tenant is examined again and again.
        """
        for _ in range(min(2, len(self._limited))):
            name = self._limited.popleft()
            usage = self._usages[name]
            if usage.num_requests == 0 and self._is_full(usage, now):
                del self._usages[name]
            else:
                self._limited.append(name)

    def _is_full(self, usage: "_Usage", now: float) -> bool:
        """Whether the buckets are full, as those of a new tenant."""
        tenant = usage.tenant
        assert tenant is not None
        self._take_outputs(tenant, usage)
        return usage.requests.is_full(tenant.max_requests_per_minute, now) and (
            usage.tokens.is_full(tenant.max_tokens_per_minute, now)
        )

    def _usage_of(self, tenant: Tenant) -> "_Usage":
        return self._usages.setdefault(tenant.name, _Usage())


class _Usage:
    """The usage of one tenant.

    Attributes:
        tenant: with the limits of its latest request; None if that had no limit a minute.
        shares: its shares, whose output tokens are charged.
        num_outputs: output tokens that `tokens` was charged.
        is_listed: it is in the list of tenants to forget once their buckets are full.
    """

    __slots__ = (
        "is_listed",
        "num_outputs",
        "num_requests",
        "requests",
        "shares",
        "tenant",
        "tokens",
    )

    def __init__(self) -> None:
        self.tenant: Tenant | None = None
        self.shares: set[Share] = set()
        self.num_requests = 0
        self.num_outputs = 0
        self.is_listed = False
        self.requests = TokenBucket()
        self.tokens = TokenBucket()

    @property
    def is_limited(self) -> bool:
        """Whether one of the buckets is in use."""
        return self.requests.is_used or self.tokens.is_used


class TokenBucket:
    """A token bucket that fills at a limit a minute, and holds at most one minute's amount.

    More than the level may be taken: the bucket is in debt then until it has filled again.
    """

    __slots__ = ("_level", "_updated_at")

    def __init__(self) -> None:
        self._level = 0.0
        self._updated_at: float | None = None

    @property
    def is_used(self) -> bool:
        """Whether it has had a limit."""
        return self._updated_at is not None

    def is_full(self, limit: float, now: float) -> bool:
        """Whether it holds a minute's amount, as a new one does."""
        if self._updated_at is None:
            return True
        return self._level + max(0.0, now - self._updated_at) * limit / MINUTE >= limit

    def refill(self, limit: float, now: float) -> None:
        """Fill the bucket up to now; `limit` may differ from that of the last call."""
        if self._updated_at is None:  # full, less the amount taken before the first limit
            self._updated_at = now - MINUTE
            self._level = 0.0
        elapsed = max(0.0, now - self._updated_at)
        self._level = min(limit, self._level + elapsed * limit / MINUTE)
        self._updated_at = max(now, self._updated_at)

    def take(self, amount: float) -> None:
        self._level -= amount

    def seconds_until(self, amount: float, limit: float) -> float:
        """Seconds until `amount` is available; 0 if it is."""
        return max(0.0, amount - self._level) * MINUTE / limit


def _rejection(limit: Limit, tenant: Tenant, wait: float) -> RejectedError:
    reason = RejectionReason(limit)
    return RejectedError(429, limit.reached(tenant), retry_after=wait, reason=reason)
