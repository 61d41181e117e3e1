"""Every service over mutual TLS, as processes, with a license server beside them."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest

from support.certificates import LIFETIME, make_certificates, tls_config
from support.cluster import Process
from support.license_server import LicenseServer
from support.licenses import Clock, gpu_names, make_license, signed
from support.patience import PATIENCE_SECONDS, until
from support.serving import Serving, free_port
from taco_common.grpc_tls import open_channel
from taco_common.tls import Role
from taco_demo.locate import find_model
from taco_license.tls import TlsFiles
from taco_llm.args.flags import DRAFTER, GATEWAY, SCHEDULER, WORKER
from taco_llm.args.tls_args import tls_flags
from taco_llm.certificates import issue
from taco_llm.supervisor.child_message import ServiceConfig
from taco_proto import inference_pb2
from taco_proto.config import (
    DrafterConfig,
    GatewayConfig,
    LicenseConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
    WorkerConfig,
)
from taco_proto.inference_pb2_grpc import InferenceStub
from taco_proto.scheduler_pb2 import StatsRequest
from taco_proto.scheduler_pb2_grpc import SchedulerStub

HOST_ID = gpu_names(1)[0]


class Services:
    """The processes, and a license server in a thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificates = make_certificates(directory / "tls", *Role)
        self.scheduler_address = f"127.0.0.1:{free_port()}"
        self.inference_address = f"127.0.0.1:{free_port()}"
        self._http_port = free_port()
        files = tls_config(self.certificates, Role.LICENSE_SERVER)
        self.license_server = LicenseServer(
            directory / "license", Clock(), TlsFiles(files.ca_file, files.cert_file, files.key_file)
        )
        self.processes = {
            service: Process(service, config, directory / f"{service}.log")
            for service, config in self._configs().items()
        }

    def _configs(self) -> dict[str, ServiceConfig]:
        model, draft = find_model("demo"), find_model("demo-draft")
        served = ModelConfig(model=str(model), served_model_names=("demo",))
        return {
            SCHEDULER: SchedulerConfig(
                listen=self.scheduler_address,
                tls=tls_config(self.certificates, Role.SCHEDULER),
                log_stats=False,
            ),
            GATEWAY: GatewayConfig(
                model=served,
                scheduler=self.scheduler_address,
                tls=tls_config(self.certificates, Role.GATEWAY),
                host="127.0.0.1",
                port=self._http_port,
                grpc_listen=self.inference_address,
                log_requests=False,
            ),
            WORKER: WorkerConfig(
                model=served,
                scheduler=self.scheduler_address,
                tls=tls_config(self.certificates, Role.WORKER),
                num_blocks=256,
                num_threads=1,
                speculation=SpeculationConfig(num_speculative_tokens=4),
                license=LicenseConfig(host_id=HOST_ID, address=self.license_server.address),
            ),
            DRAFTER: DrafterConfig(
                model=ModelConfig(model=str(draft)),
                scheduler=self.scheduler_address,
                tls=tls_config(self.certificates, Role.DRAFT_WORKER),
                num_threads=1,
            ),
        }

    async def until_whole(self, num_starts: int) -> None:
        """The scheduler, which was started so often, has everybody, and the gateway knows."""

        async def is_so() -> bool:
            log = self.processes[SCHEDULER].log
            if log.count("draft worker drafter-0 attached") < num_starts:
                return False
            try:
                async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
                    health = await client.get(f"http://127.0.0.1:{self._http_port}/health")
            except httpx.HTTPError:
                return False
            return health.status_code == 200

        await until(is_so, "a whole service")

    async def complete(self) -> str:
        body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            url = f"http://127.0.0.1:{self._http_port}/v1/completions"
            answer = await client.post(url, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    async def complete_over_grpc(self) -> str:
        """As an internal caller, through the Inference service."""
        sampling = inference_pb2.TextSampling(max_tokens=12, temperature=0)
        request = inference_pb2.CompleteRequest(text="Once upon a time", sampling=sampling)
        tls = tls_config(self.certificates, Role.CLIENT)
        async with open_channel(self.inference_address, (), tls, Role.GATEWAY) as channel:
            replies = [reply async for reply in InferenceStub(channel).Complete(request)]
        return "".join(reply.text for reply in replies)

    def renew_everything(self) -> None:
        """Replaces every file by one of another authority: services with old files are rejected."""
        new = make_certificates(self.directory / "new", *Role)
        for file in new.iterdir():
            file.replace(self.certificates / file.name)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    services = Services(tmp_path)
    with services.license_server as license_server:
        license_server.replace(signed(make_license(1)))
        try:
            for process in services.processes.values():
                process.start()
            yield services
        finally:
            for process in services.processes.values():
                process.kill()


async def test_serve_with_one_certificate_for_all_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_certificates(tmp_path / "tls", Role.LICENSE_SERVER)
    roles = [Role.GATEWAY.dns_name, Role.SCHEDULER.dns_name]
    issue(directory, Role.WORKER, LIFETIME, hosts=roles)
    tls = tls_config(directory, Role.WORKER)
    address = f"127.0.0.1:{free_port()}"
    flags = ["--scheduler-listen", address, "--license", "required", "--license-id", HOST_ID]
    files = tls_config(directory, Role.LICENSE_SERVER)
    with LicenseServer(
        tmp_path / "license", Clock(), TlsFiles(files.ca_file, files.cert_file, files.key_file)
    ) as license_server:
        license_server.replace(signed(make_license(1)))
        monkeypatch.setenv("TACO_LS_ADDR", license_server.address)
        with Serving(tmp_path, "demo", *flags, *tls_flags(tls)).wait_ready():
            assert license_server.service.ledger.num_seats == 1
            async with open_channel(address, (), tls, Role.SCHEDULER) as channel:
                assert (await SchedulerStub(channel).Stats(StatsRequest())).num_workers == 1
            async with open_channel(address, (), None, Role.SCHEDULER) as channel:
                refused = SchedulerStub(channel).Stats(StatsRequest())
                assert await refused.code() == grpc.StatusCode.UNAVAILABLE


async def test_services_continue_with_renewed_certificates(services: Services) -> None:
    await services.until_whole(num_starts=1)
    answer = await services.complete()
    assert answer
    assert await services.complete_over_grpc() == answer
    assert services.license_server.service.ledger.num_seats == 1

    # Nothing is restarted but the scheduler, which everybody dials again.
    services.renew_everything()
    services.processes[SCHEDULER].kill()
    services.processes[SCHEDULER].start()
    await services.until_whole(num_starts=2)
    assert await services.complete() == answer
    assert await services.complete_over_grpc() == answer
