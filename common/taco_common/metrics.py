"""Prometheus metrics: the process metrics of every service, and helpers for its own ones."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from taco_common.histogram import Histogram
from taco_common.tls import Role, certificate_end
from taco_proto.config import TlsConfig
from taco_proto.errors import ConfigurationError


def process_registry(service: Role, tls: TlsConfig | None = None) -> CollectorRegistry:
    """A registry with metrics of the process (`process_…`, `python_…`), its version
    (`taco:build_info`) and its certificate; the service adds its own collectors.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge(
        "taco:build_info",
        "Always 1; the labels have the service and its version.",
        ("service", "version"),
        registry=registry,
    )
    build.labels(service, version("taco-llm")).set(1)
    if tls is not None:
        registry.register(_Certificate(tls, service))
    return registry


class _Certificate(Collector):
    """When the certificate in the file expires. If a new file is invalid or expired, the old
    certificate's time stays, so that alerts fire.
    """

    def __init__(self, tls: TlsConfig, role: Role) -> None:
        self._tls = tls
        self._role = role
        self._version = 0
        self._end = 0.0

    def collect(self) -> Iterable[Metric]:
        with suppress(OSError, ConfigurationError):
            version = os.stat(self._tls.cert_file).st_mtime_ns
            if version != self._version:
                self._end = certificate_end(self._tls, self._role)
                self._version = version
        yield Families().gauge(
            "taco:certificate_expiry_timestamp_seconds",
            "When the service's own certificate expires.",
            self._end,
        )


class LateCollector(Collector):
    """Calls `collect` for its metrics at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


class Families:
    """Makes metric families whose samples all carry the same labels."""

    def __init__(self, **labels: str) -> None:
        self._names = list(labels)
        self._values = list(labels.values())

    def gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def gauges(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """One sample for each of `values`; `label` has the key."""
        family = GaugeMetricFamily(name, text, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """A counter; `name` is without `_total`."""
        family = CounterMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def counters(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """One counter for each of `values`; `name` is without `_total`."""
        family = CounterMetricFamily(name, text, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family

    def histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._names)
        family.add_metric(self._values, histogram.buckets(), histogram.sum)
        return family


def exposition(registry: CollectorRegistry) -> bytes:
    """The metrics in Prometheus' text format."""
    return generate_latest(registry)


async def exposition_in_thread(registry: CollectorRegistry) -> bytes:
    """The metrics in Prometheus' text format, rendered in a thread.

    Metrics are collected on the event loop, which owns the counters. Rendering them as text takes
    several times as long and would delay other work on that loop.
    """
    snapshot = list(registry.collect())
    return await asyncio.to_thread(generate_latest, LateCollector(lambda: snapshot))
