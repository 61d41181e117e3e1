"""What each service's page of metrics shows once everything on it has happened."""

from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from support.certificates import make_certificates, tls_config
from support.drafting import Ask, draft_request
from support.engine_driver import Driver
from support.fake_worker import worker_info
from support.licenses import Clock, gpu_names, make_license, make_service, signed
from taco_common.metrics import LateCollector, exposition, process_registry
from taco_common.tls import Role
from taco_demo.locate import find_model
from taco_draft.draft_runner import DraftRunner
from taco_draft.metrics import draft_metrics
from taco_gateway.metrics import GatewayMetrics
from taco_gateway.redis_state import RedisState
from taco_license.errors import LeaseRejectedError
from taco_license.ledger.sqlite_store import Store
from taco_license.server.metrics import ServiceMetrics
from taco_license.tls import TlsFiles
from taco_proto.config import DrafterConfig, ModelConfig, RedisConfig, TlsConfig, WorkerConfig
from taco_scheduler.metrics.exposition import EngineCollector
from taco_worker.metrics import worker_metrics
from taco_worker.model_service import ModelService
from taco_worker.worker import Worker


@dataclass(slots=True)
class Exported:
    """What one job exports.

    Attributes:
        families: types by the names that stand in its page's TYPE lines.
        types: types by the names of samples, as queries have them.
        values: of each label of each of those.
    """

    families: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def add(self, page: str) -> None:
        for family in text_string_to_metric_families(page):
            self.families[family.name] = family.type
            for sample in family.samples:
                self.types[sample.name] = family.type
                labels = self.values.setdefault(sample.name, {})
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)


async def exported_metrics(directory: Path) -> dict[str, Exported]:
    """By the jobs' names.

    Args:
        directory: an empty one.
    """
    roles = (Role.GATEWAY, Role.SCHEDULER, Role.WORKER, Role.DRAFT_WORKER, Role.LICENSE_SERVER)
    files = make_certificates(directory / "tls", *roles)
    gateway, scheduler, worker, draft_worker, license_ = (tls_config(files, r) for r in roles)
    pages = {
        "taco-gateway": _gateway(gateway),
        "taco-scheduler": _scheduler(scheduler),
        "taco-worker": _worker(worker),
        "taco-draft-worker": _draft_worker(draft_worker),
        "taco-license-server": await _license_server(directory / "license", license_),
    }
    result: dict[str, Exported] = {}
    for job, page in pages.items():
        result[job] = Exported()
        result[job].add(page.decode())
    return result


def _gateway(tls: TlsConfig) -> bytes:
    metrics = GatewayMetrics("m", tls)
    for status in (200, 429, 500):
        metrics.observe_response(status)
    RedisState(RedisConfig(url="redis://localhost"), with_keys=True).export_metrics(metrics, "m")
    return metrics.exposition()


def _scheduler(tls: TlsConfig) -> bytes:
    info = worker_info(max_draft_tokens=4, num_host_blocks=32, num_disk_blocks=32)
    driver = Driver(info, num_speculative_tokens=4)
    driver.attach()
    driver.submit(1, [4, 5, 6], max_tokens=40, ignore_eos=True)
    driver.run()
    registry = process_registry(Role.SCHEDULER, tls)
    registry.register(EngineCollector(driver.engine))
    return exposition(registry)


def _worker(tls: TlsConfig) -> bytes:
    model = ModelConfig(model=str(find_model("demo")))
    worker = Worker(WorkerConfig(model=model, num_blocks=16, num_threads=1))
    return _page(Role.WORKER, tls, worker_metrics(worker, ModelService()))


def _draft_worker(tls: TlsConfig) -> bytes:
    model = ModelConfig(model=str(find_model("demo-draft")))
    runner = DraftRunner(DrafterConfig(model=model, num_blocks=16, num_threads=1))
    runner.draft(draft_request(Ask(1, 0, [5, 6, 7], 3)))
    assert runner.counters.num_drafts == 3
    return _page(Role.DRAFT_WORKER, tls, draft_metrics(runner, ModelService()))


def _page(role: Role, tls: TlsConfig, families: Iterable[Metric]) -> bytes:
    registry = process_registry(role, tls)
    registry.register(LateCollector(lambda: families))
    return exposition(registry)


async def _license_server(directory: Path, tls: TlsConfig) -> bytes:
    with closing(Store(directory)) as store:
        service = make_service(store, Clock())
        await service.import_license(signed(make_license(access_limit=1)))
        for gpu in gpu_names(2):
            with suppress(LeaseRejectedError):
                await service.lease([gpu], "host", 1)
        return ServiceMetrics(service, TlsFiles(**asdict(tls))).render()
