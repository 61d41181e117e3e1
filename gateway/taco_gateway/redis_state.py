"""What a gateway shares with others through Redis: limits of tenants, and API keys."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taco_common.redis_link import RedisLink
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.api_keys.redis_key_sync import SharedKeys
from taco_gateway.engine.shared_limits import SharedLimits
from taco_gateway.metrics import GatewayMetrics
from taco_proto.config import RedisConfig
from taco_proto.limits import Limit


class Sharing:
    """One link to Redis, and what goes over it.

    Args:
        with_keys: API keys stand in Redis.

    Attributes:
        key_ring: those keys; None: they stand elsewhere.

    Raises:
        ConfigurationError: the URL or the password file cannot be used.
    """

    def __init__(self, config: RedisConfig, *, with_keys: bool) -> None:
        self.link = RedisLink(config)
        self.limits = SharedLimits(self.link)
        self.key_ring = KeyRing(None) if with_keys else None
        self.keys = None if self.key_ring is None else SharedKeys(self.link, self.key_ring)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Shares as long as the context lasts."""
        tasks = [asyncio.create_task(self.limits.run())]
        if self.keys is not None:
            tasks.append(asyncio.create_task(self.keys.follow()))
        self.link.start()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.link.close()

    def show_in(self, metrics: GatewayMetrics, model_name: str) -> None:
        metrics.add(_SharingMetrics(self, model_name))


class _SharingMetrics(Collector):
    def __init__(self, sharing: Sharing, model_name: str) -> None:
        self._sharing = sharing
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        link, limits, keys = self._sharing.link, self._sharing.limits, self._sharing.keys
        yield self._gauge("redis_trusted", "1 while Redis answers in time.", link.trusted)
        yield self._counter(
            "redis_failures", "Times that Redis did not answer in time.", link.counts.num_failures
        )
        yield self._counter(
            "local_limit_requests",
            "Requests for which Redis could not be asked, so that the scheduler's limits held.",
            limits.num_local,
        )
        refused = CounterMetricFamily(
            "taco:limit_refusals",
            "Requests refused by a limit that all gateways share.",
            labels=("model_name", "reason"),
        )
        for limit in Limit:
            refused.add_metric((self._model_name, limit), limits.num_refused[limit])
        yield refused
        if keys is not None:
            yield self._gauge("api_key_owners", "Owners of API keys in Redis.", keys.num_owners)
            yield self._gauge(
                "bad_api_key_records",
                "Records of API keys in Redis that make no sense.",
                keys.num_bad_records,
            )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"taco:{name}", text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"taco:{name}", text, labels=("model_name",))
        family.add_metric((self._model_name,), value)
        return family
