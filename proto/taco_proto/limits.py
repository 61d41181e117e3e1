"""Limits of a tenant, and how a client is told of them, whoever keeps count."""

from enum import StrEnum

from taco_proto.requests import Tenant

MINUTE = 60.0  # seconds
MAX_RETRY_SECONDS = 60  # OpenAI's clients obey no more
# When one of a tenant's requests ends is not known: it may be soon.
RETRY_CONCURRENT = 1.0


class Limit(StrEnum):
    """What is limited, as metrics name it."""

    REQUESTS = "requests_per_minute"
    TOKENS = "tokens_per_minute"
    CONCURRENT = "concurrent_requests"

    def of(self, tenant: Tenant) -> int:
        """0: there is no limit."""
        return int(getattr(tenant, f"max_{self}"))

    def reached(self, tenant: Tenant) -> str:
        """What a client is told."""
        return f"the limit of {self.of(tenant)} {_UNITS[self]} is reached"


_UNITS = {
    Limit.REQUESTS: "requests a minute",
    Limit.TOKENS: "tokens a minute",
    Limit.CONCURRENT: "requests at a time",
}


def has_limits(tenant: Tenant) -> bool:
    return any(limit.of(tenant) for limit in Limit)


def too_long(num_tokens: int, tenant: Tenant) -> str | None:
    """What a client is told whose prompt no time makes fit; None: it fits."""
    limit = tenant.max_tokens_per_minute
    if not limit or num_tokens <= limit:
        return None
    return f"the prompt of {num_tokens} tokens is above the limit of {limit} a minute"
