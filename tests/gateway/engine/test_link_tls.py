"""The client over mutual TLS: it dials with the files as they are, and schedulers alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.certificates import EXPIRED, LIFETIME, make_certificates, tls_config
from support.fake_worker import FakeWorker
from support.live_scheduler import expected_tokens, read, request, scheduler, until_ready
from support.patience import until
from support.serving import free_port
from taco_common.tls import Role
from taco_gateway.engine.scheduler_client import SchedulerClient
from taco_llm.certificates import issue


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "tls", Role.SCHEDULER, Role.GATEWAY, Role.WORKER)


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
async def client(address: str, directory: Path) -> AsyncIterator[SchedulerClient]:
    client = SchedulerClient(address, tls=tls_config(directory, Role.GATEWAY))
    client.start()
    yield client
    await client.close()


async def assert_serves(client: SchedulerClient) -> None:
    await until_ready(client)
    asked = request()
    assert await read(client.generate(asked)) == expected_tokens(asked)
    assert (await client.stats()).num_workers == 1


async def test_the_files_are_read_at_each_dial(
    address: str, directory: Path, client: SchedulerClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taco.gateway.scheduler")

    async def is_waiting(reason: str) -> bool:
        return f"waiting for the scheduler at {address}: {reason}" in caplog.text

    tls = tls_config(directory, Role.SCHEDULER)
    async with scheduler(address, FakeWorker(), tls):
        await assert_serves(client)
        issue(directory, Role.GATEWAY, EXPIRED)
        await assert_serves(client)  # a link that stands is not asked again
    async with scheduler(address, FakeWorker(), tls):
        await until(lambda: is_waiting("UNAVAILABLE"), "a refusal")
        (directory / "gateway.key").unlink()
        await until(lambda: is_waiting("cannot read"), "a missing file")
        issue(directory, Role.GATEWAY, LIFETIME)
        await assert_serves(client)


async def test_only_a_certificate_of_the_scheduler_role_is_accepted(
    address: str, directory: Path, client: SchedulerClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "taco.gateway.scheduler")

    async def is_refused() -> bool:
        return "waiting for the scheduler" in caplog.text

    async with scheduler(address, FakeWorker(), tls_config(directory, Role.WORKER)) as impostor:
        await until(is_refused, "a refusal")
        assert client.model_info() is None
        assert impostor.engine.num_waiting == 0
