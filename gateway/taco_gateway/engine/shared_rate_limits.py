"""Rate limits of a tenant over all gateways and schedulers, counted in Redis.

Admission charges a request with its prompt before it is submitted; its generated tokens are charged
as they arrive. While Redis is unreachable each scheduler applies its own limits, and nothing is
charged later, except that the leases of running requests are renewed when Redis is back.
"""

import asyncio
import itertools
import logging
import math
import secrets
import time
from collections import Counter, deque
from collections.abc import Sequence

from redis.exceptions import ResponseError

from taco_common.redis_link import Command, RedisLink
from taco_common.redis_queue import RedisQueue
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.engine.rate_limit_scripts import ADMIT, REACHED, SETTLE, limit_keys
from taco_proto.limits import MAX_RETRY_SECONDS, RETRY_CONCURRENT, Limit, too_long
from taco_proto.requests import Tenant

LEASE_MS = 10_000
# Seconds between renewals of leases. A Redis that lost its data knows all requests after that.
RENEW_SECONDS = 2.0
MAX_RELEASED = 512  # leases that one command ends
QUIET_SECONDS = 60.0

logger = logging.getLogger("taco.gateway.limits")


class Ticket:
    """The admission of one running request of a tenant with limits.

    Attributes:
        is_shared: Redis admitted it; False: the scheduler applies the limits.
        num_uncharged_tokens: generated tokens that have not been charged yet.
    """

    __slots__ = (
        "_has_ended",
        "_limits",
        "_num_prompt_tokens",
        "is_shared",
        "lease",
        "num_uncharged_tokens",
        "tenant",
    )

    def __init__(
        self, limits: "SharedRateLimits", tenant: Tenant, lease: str, num_prompt_tokens: int
    ) -> None:
        self.tenant = tenant
        self.lease = lease
        self.is_shared = False
        self.num_uncharged_tokens = 0
        self._num_prompt_tokens = num_prompt_tokens
        self._limits = limits
        self._has_ended = False

    def spend(self, num_tokens: int) -> None:
        """Counts generated tokens."""
        self.num_uncharged_tokens += num_tokens

    def end(self, *, refund: bool = False) -> None:
        """Ends the request; idempotent.

        Args:
            refund: the request was rejected later and must cost nothing.
        """
        if self._has_ended:
            return
        self._has_ended = True
        if refund and self.is_shared:
            self._limits.leave(self, num_requests=-1, num_tokens=-self._num_prompt_tokens)
        else:
            self._limits.leave(self, num_requests=0, num_tokens=self.num_uncharged_tokens)


class SharedRateLimits:
    """Belongs to one event loop.

    Args:
        link: not started yet.

    Attributes:
        num_rejected: rejected requests, by the limit that they reached.
        num_local: requests that were admitted without Redis.
    """

    def __init__(self, link: RedisLink) -> None:
        self.num_rejected: Counter[Limit] = Counter()
        self.num_local = 0
        self._admit, self._settle = link.add_script(ADMIT), link.add_script(SETTLE)
        self._name = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._running: dict[str, dict[str, Ticket]] = {}  # by tenant and lease
        self._ended: deque[tuple[float, Ticket]] = deque()  # their leases may still be in Redis
        self._queue = RedisQueue(link, self._log_error)
        self._is_back = asyncio.Event()
        self._logged_at = -math.inf
        link.on_trust(self._is_back.set)

    async def run(self) -> None:
        """Renews leases and sends charges until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run())
            tasks.create_task(self._keep_leases())

    async def admit(self, tenant: Tenant, num_prompt_tokens: int) -> Ticket:
        """Admits a request; the ticket must be ended. Waits for Redis at most its link's timeout.

        Raises:
            EngineError: 429, a limit is reached; nothing was charged.
        """
        if (message := too_long(num_prompt_tokens, tenant)) is not None:
            self.num_rejected[Limit.TOKENS] += 1
            raise EngineError(429, message)
        ticket = Ticket(self, tenant, f"{self._name}:{next(self._numbers)}", num_prompt_tokens)
        reply = await self._ask(self._admission(ticket, num_prompt_tokens), ticket)
        if reply is None:
            self.num_local += 1
        elif (limit := REACHED[reply[0]]) is not None:
            self.num_rejected[limit] += 1
            raise _rejection(limit, tenant, reply[1] / 1000)
        ticket.is_shared = reply is not None
        self._running.setdefault(tenant.name, {})[ticket.lease] = ticket
        return ticket

    def leave(self, ticket: Ticket, *, num_requests: int, num_tokens: int) -> None:
        """Charges a request that has ended: see `Ticket.end`."""
        tenant = ticket.tenant
        tickets = self._running.get(tenant.name, {})
        tickets.pop(ticket.lease, None)
        if not tickets:
            self._running.pop(tenant.name, None)
        if tenant.max_concurrent_requests:
            self._ended.append((time.monotonic(), ticket))
            self._forget_expired()
        self._queue.tell(
            self._settlement(tenant, num_requests, num_tokens, released=[ticket.lease])
        )

    # ------------------------------------------------------------------- Redis

    async def _ask(self, command: Command, ticket: Ticket) -> list[int] | None:
        """The reply to an admission; None: Redis did not answer in time."""
        try:
            return await self._queue.ask(command)
        except asyncio.CancelledError:  # the client disconnected; Redis may still admit the request
            ticket.end()
            raise

    async def _keep_leases(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._is_back.wait()
            except TimeoutError:
                pass
            if self._is_back.is_set():
                self._is_back.clear()
                self._release_again()
            for tickets in self._running.values():
                self._renew(list(tickets.values()))

    def _renew(self, tickets: list[Ticket]) -> None:
        """Renews the leases of one tenant and charges its generated tokens."""
        tenant = tickets[-1].tenant  # it has the latest limits
        num_tokens = sum(ticket.num_uncharged_tokens for ticket in tickets)
        for ticket in tickets:
            ticket.num_uncharged_tokens = 0
        renewed = [ticket.lease for ticket in tickets if tenant.max_concurrent_requests]
        if renewed or num_tokens:
            self._queue.tell(self._settlement(tenant, 0, num_tokens, renewed=renewed))

    def _release_again(self) -> None:
        """Releases the leases of ended requests again, of which Redis may not have been told.

        It sends few commands: slow ones would make the link distrust Redis again.
        """
        self._forget_expired()
        ended: dict[str, list[Ticket]] = {}
        for _, ticket in self._ended:
            ended.setdefault(ticket.tenant.name, []).append(ticket)
        for tickets in ended.values():
            tenant, leases = tickets[-1].tenant, [ticket.lease for ticket in tickets]
            for start in range(0, len(leases), MAX_RELEASED):
                released = leases[start : start + MAX_RELEASED]
                self._queue.tell(self._settlement(tenant, 0, 0, released=released))

    def _forget_expired(self) -> None:
        while self._ended and time.monotonic() - self._ended[0][0] > LEASE_MS / 1000:
            self._ended.popleft()

    def _admission(self, ticket: Ticket, num_tokens: int) -> Command:
        tenant = ticket.tenant
        limits = (Limit.REQUESTS.of(tenant), Limit.TOKENS.of(tenant), Limit.CONCURRENT.of(tenant))
        arguments = (*limits, num_tokens, ticket.lease, LEASE_MS)
        return ("EVALSHA", self._admit, 3, *limit_keys(tenant), *arguments)

    def _settlement(
        self,
        tenant: Tenant,
        num_requests: int,
        num_tokens: int,
        *,
        released: Sequence[str] = (),
        renewed: Sequence[str] = (),
    ) -> Command:
        charges: Command = (
            Limit.REQUESTS.of(tenant),
            num_requests,
            Limit.TOKENS.of(tenant),
            num_tokens,
        )
        leases: Command = (LEASE_MS, len(released), *released, *renewed)
        return ("EVALSHA", self._settle, 3, *limit_keys(tenant), *charges, *leases)

    def _log_error(self, error: ResponseError) -> None:
        """Logs at most once a minute; the scheduler's own limits apply to that tenant."""
        if time.monotonic() - self._logged_at > QUIET_SECONDS:
            self._logged_at = time.monotonic()
            logger.error("a rate limit in Redis is invalid: %s", error)


def _rejection(limit: Limit, tenant: Tenant, wait: float) -> EngineError:
    wait = RETRY_CONCURRENT if limit is Limit.CONCURRENT else wait
    return EngineError(429, limit.reached(tenant), math.ceil(min(wait, MAX_RETRY_SECONDS)))
