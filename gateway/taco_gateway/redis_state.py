"""State that all gateways share through Redis: tenants' rate limits and API keys."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from taco_common.metrics import Families
from taco_common.redis_link import RedisLink
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.api_keys.redis_key_sync import RedisKeySync
from taco_gateway.engine.shared_rate_limits import SharedRateLimits
from taco_gateway.metrics import GatewayMetrics
from taco_proto.config import RedisConfig
from taco_proto.limits import Limit


class RedisState:
    """One Redis link with the shared rate limits and, optionally, the shared API keys.

    Args:
        with_keys: read the API keys from Redis.

    Attributes:
        key_ring: the API keys of Redis; None: the keys come from flags or a file.

    Raises:
        ConfigurationError: the URL or the password file cannot be used.
    """

    def __init__(self, config: RedisConfig, *, with_keys: bool) -> None:
        self.link = RedisLink(config)
        self.limits = SharedRateLimits(self.link)
        self.key_ring = KeyRing(None) if with_keys else None
        self.keys = None if self.key_ring is None else RedisKeySync(self.link, self.key_ring)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps limits and keys up to date while the context lasts."""
        tasks = [asyncio.create_task(self.limits.run())]
        if self.keys is not None:
            tasks.append(asyncio.create_task(self.keys.run()))
        self.link.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.link.close()

    def export_metrics(self, metrics: GatewayMetrics, model_name: str) -> None:
        metrics.add(_RedisMetrics(self, model_name))


class _RedisMetrics(Collector):
    def __init__(self, state: "RedisState", model_name: str) -> None:
        self._state = state
        self._families = Families(model_name=model_name)

    def collect(self) -> Iterable[Metric]:
        make, state = self._families, self._state
        link, limits, keys = state.link, state.limits, state.keys
        yield make.gauge("taco:redis_trusted", "1 while Redis answers in time.", link.trusted)
        yield make.counter(
            "taco:redis_failures",
            "Times that Redis did not answer in time.",
            link.counts.num_failures,
        )
        yield make.counter(
            "taco:local_limit_requests",
            "Requests that only the scheduler's own limits bounded because Redis did not answer.",
            limits.num_local,
        )
        yield make.counters(
            "taco:limit_refusals",
            "Requests rejected by a limit that all gateways share.",
            "reason",
            {limit: limits.num_rejected[limit] for limit in Limit},
        )
        if keys is not None:
            yield make.gauge("taco:api_key_owners", "Owners of API keys in Redis.", keys.num_owners)
            yield make.gauge(
                "taco:bad_api_key_records",
                "Invalid API key records in Redis.",
                keys.num_bad_records,
            )
