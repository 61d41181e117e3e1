"""Supervised services: restarts with back-off, failed starts, forwarded errors."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from support.patience import PATIENCE_SECONDS, until
from taco_common import progress
from taco_common.logging import PROGRESS, event, make_entry
from taco_llm.args.flags import GATEWAY, SCHEDULER
from taco_llm.args.model_location import locate_model
from taco_llm.supervisor import supervised_service
from taco_llm.supervisor.child_process import ChildProcess
from taco_llm.supervisor.supervisor import Supervisor
from taco_proto.config import GatewayConfig, ModelConfig, SchedulerConfig
from taco_worker.models.config import load_hf_config


def error(message: str) -> str:
    return json.dumps(make_entry("worker", "ERROR", "taco.worker", message))


class Service(ChildProcess):
    """A real process that does what a shell script says; it is there as long as the script is."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(SCHEDULER, SchedulerConfig(listen="unix:/s"))
        self.program = directory / "program"
        monkeypatch.setattr(sys, "executable", str(self.program))

    def write(self, script: str) -> None:
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o700)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr(supervised_service, "MIN_DELAY_SECONDS", 0.01)
    return Service(tmp_path, monkeypatch)


@asynccontextmanager
async def kept(service: Service) -> AsyncIterator[None]:
    keeper = asyncio.create_task(service.keep_running())
    try:
        yield
        assert not keeper.done()
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper


async def until_told(caplog: pytest.LogCaptureFixture, *texts: str) -> None:
    """The log has `texts` in it, one after the other."""

    async def is_so() -> bool:
        messages = iter(caplog.messages)
        return all(any(text in message for message in messages) for text in texts)

    await until(is_so, f"the messages {texts}")


async def test_a_failed_start_is_retried(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.write('rm "$0"; exit 3')  # not before the shell has read it
    await service.start()
    async with kept(service):
        await until_told(
            caplog,
            "died (exit code 3); starting it again in 0.0 s",
            f"cannot be started ([Errno 2] No such file or directory: '{service.program}')",
        )
        service.write("exit 4")
        await until_told(caplog, "cannot be started", "died (exit code 4)")


@pytest.mark.parametrize(("stable_seconds", "grows"), [(0.0, False), (60.0, True)])
async def test_restarts_use_exponential_backoff(
    service: Service,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stable_seconds: float,
    grows: bool,
) -> None:
    monkeypatch.setattr(supervised_service, "MIN_DELAY_SECONDS", 0.1)
    monkeypatch.setattr(supervised_service, "STABLE_SECONDS", stable_seconds)
    service.write("exit 3")
    await service.start()
    async with kept(service):
        await until_told(caplog, "again in 0.1 s", "again in 0.2 s" if grows else "again in 0.1 s")


async def test_waiting_for_a_node_does_not_count_as_running(
    service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an actor waits for room in a cluster and dies there."""
    monkeypatch.setattr(supervised_service, "MIN_DELAY_SECONDS", 0.1)
    monkeypatch.setattr(supervised_service, "STABLE_SECONDS", 0.0)
    monkeypatch.setattr(service, "_mark_running", lambda: None)
    service.write("exit 3")
    await service.start()
    async with kept(service):
        await until_told(caplog, "again in 0.1 s", "again in 0.2 s")


async def test_an_error_is_logged_if_the_start_continues(
    service: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised_service, "ERROR_HOLD_SECONDS", 0.01)
    service.write(f"echo '{error('no license')}' >&2; exec sleep 600")
    await service.start()
    shown: list[str] = []

    async def is_shown() -> bool:
        shown.append(capsys.readouterr().err)
        return "no license\n" in "".join(shown)

    try:
        await until(is_shown, "the line")
    finally:
        service.kill()
        await service.wait()


async def test_the_supervisor_reports_the_error_that_ends_a_start(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.write(f"echo '{error('no model')}' >&2; exit 1")
    await service.start()
    await service.wait()
    assert service.exit_reason() == "no model"
    assert capsys.readouterr().err == ""


async def test_progress_with_a_growing_total_is_shown(
    service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "taco.progress")
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    entry = make_entry("worker", "INFO", "taco.progress", "downloading")
    lines = [
        json.dumps(entry | event(PROGRESS, {"what": "downloading", **data}))
        for data in (
            {"done": 10**9, "total": 10**9, "finished": False},
            {"done": 10**9, "total": 2 * 10**9, "finished": False},
            {"done": 2 * 10**9, "total": 2 * 10**9, "finished": True},
        )
    ]
    service.write("".join(f"echo '{line}' >&2\n" for line in lines))
    await service.start()
    await service.wait()
    shares = ("100% of 1.0", "50% of 2.0", "100% of 2.0")
    assert caplog.messages == [f"downloading: {share} GB" for share in shares]


async def test_the_supervisor_ends_if_a_restarter_fails() -> None:
    class Broken(ChildProcess):
        async def keep_running(self) -> None:
            raise RuntimeError("a defect")

    gateway = GatewayConfig(model=ModelConfig(model="demo"), scheduler="unix:/s")
    broken = Broken(GATEWAY, gateway)
    model = load_hf_config(Path(locate_model("demo")))
    with pytest.raises(RuntimeError, match="a defect"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await Supervisor([broken], gateway, model)._keep_running()
