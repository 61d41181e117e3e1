"""What the license server measures, made into Prometheus families when somebody scrapes."""

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
    """The figures of one service, of its process and of its certificate, in their own registry."""

    def __init__(self, service: LicenseService, tls: TlsFiles | None = None) -> None:
        self._service = service
        files = None if tls is None else TlsConfig(**asdict(tls))
        self._registry = process_registry(Role.LICENSE_SERVER, files)
        self._registry.register(self)

    def render(self) -> bytes:
        """Prometheus' text format."""
        return exposition(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        service, ledger = self._service, self._service.ledger
        license_ = service.license
        yield _gauge("valid", "1: there is a license that has not expired.", service.is_valid())
        yield _gauge("seats_taken", "GPUs that have a lease.", ledger.num_seats)
        yield _gauge("clock_behind_seconds", "How far the clock is back.", ledger.seconds_behind())
        yield _gauge("storage_up", "1: the disk takes writes, or Redis answers.", ledger.is_working)
        if license_ is not None:
            yield _gauge("seats", "The most GPUs at once; 0: no limit.", license_.access_limit)
            yield _gauge("gpus", "GPUs in the license.", len(license_.gpus))
            yield _gauge("expiry_timestamp_seconds", "When it expires.", license_.expires)
        yield _counter("requests", "Requests for leases.", "outcome", service.outcomes)
        yield _counter("imports", "Licenses that were uploaded.", "outcome", service.imports)
        errors = CounterMetricFamily(
            "taco:license_storage_errors", "What could not be written or asked."
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
