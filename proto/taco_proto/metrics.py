"""What every service measures of itself, beside its own numbers."""

from collections.abc import Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector


def process_registry(service: str) -> CollectorRegistry:
    """A registry that shows the process (`process_…`, `python_…`) and what runs in it
    (`taco:build_info`); the service adds its own collectors.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = Gauge(
        "taco:build_info",
        "1; what runs here stands in the labels.",
        ("service", "version"),
        registry=registry,
    )
    build.labels(service, version("taco-llm")).set(1)
    return registry


class LateCollector(Collector):
    """Asks `collect` for its metrics when somebody scrapes, and not before."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def exposition(registry: CollectorRegistry) -> bytes:
    """Prometheus' text format."""
    return generate_latest(registry)
