"""The rate limits of a tenant, and the messages of requests that exceed them."""

from enum import StrEnum

from taco_proto.requests import Tenant

MINUTE = 60.0  # seconds
MAX_RETRY_SECONDS = 60  # OpenAI's clients ignore a longer Retry-After
# Seconds to retry after the concurrency limit: when a running request ends is unknown.
RETRY_CONCURRENT = 1.0


class Limit(StrEnum):
    """A limited quantity, by its name in metrics."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENT = "concurrent_requests"

    def of(self, tenant: Tenant) -> int:
        """The tenant's limit; 0: no limit."""
        return int(getattr(tenant, f"max_{self}"))

    def reached(self, tenant: Tenant) -> str:
        """The message of a request that reached the limit."""
        return f"the limit of {self.of(tenant)} {_UNITS[self]} is reached"


_UNITS = {
    Limit.REQUESTS: "requests a minute",
    Limit.TOKENS: "tokens a minute",
    Limit.CONCURRENT: "requests at a time",
}


def has_limits(tenant: Tenant) -> bool:
    return any(limit.of(tenant) for limit in Limit)


def too_long(num_tokens: int, tenant: Tenant) -> str | None:
    """The message of a prompt that exceeds a minute's limit by itself; None: it fits."""
    limit = tenant.max_tokens_per_minute
    if not limit or num_tokens <= limit:
        return None
    return f"the prompt of {num_tokens} tokens is above the limit of {limit} a minute"
