"""Prometheus metrics of the license server, collected at each scrape."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taco_common.metrics import exposition, process_registry
from taco_common.tls import Role
from taco_license.server.service import LicenseService
from taco_license.tls import TlsFiles
from taco_proto.config import TlsConfig


class ServiceMetrics(Collector):
    """Metrics of a license service, its process and its certificate, in a separate registry."""

    def __init__(self, service: LicenseService, tls: TlsFiles | None = None) -> None:
        self._service = service
        files = None if tls is None else TlsConfig(**asdict(tls))
        self._registry = process_registry(Role.LICENSE_SERVER, files)
        self._registry.register(self)

    def render(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return exposition(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        service, ledger = self._service, self._service.ledger
        license_ = service.license
        yield _gauge(
            "valid", "1 if there is a license that has not expired, else 0.", service.is_valid()
        )
        yield _gauge("seats_taken", "Seats taken: GPUs with a lease.", ledger.num_seats)
        yield _gauge(
            "clock_behind_seconds",
            "Seconds by which the clock is behind the latest time seen.",
            ledger.clock_lag_seconds(),
        )
        yield _gauge(
            "storage_up",
            "1 if the last write to disk or query to Redis succeeded, else 0.",
            ledger.is_working,
        )
        if license_ is not None:
            yield _gauge(
                "seats",
                "Seats of the license: maximum GPUs at the same time; 0 means no limit.",
                license_.access_limit,
            )
            yield _gauge("gpus", "GPUs named in the license.", len(license_.gpus))
            yield _gauge(
                "expiry_timestamp_seconds",
                "Expiry of the license in seconds since the epoch.",
                license_.expires,
            )
        yield _counter("requests", "Lease requests by outcome.", "outcome", service.outcomes)
        yield _counter("imports", "Uploaded licenses by outcome.", "outcome", service.imports)
        errors = CounterMetricFamily(
            "taco:license_storage_errors", "Failed writes to disk, or failed queries to Redis."
        )
        errors.add_metric((), ledger.num_failures)
        yield errors


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"taco:license_{name}", documentation, value=value)


def _counter(name: str, documentation: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"taco:license_{name}", documentation, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    return family
