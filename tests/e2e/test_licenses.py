"""Licenses that are granted, lapse and return, as clients of real processes see it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.away import black_hole
from support.cluster import Process
from support.license_server import LicenseServer
from support.licenses import Clock, gpu_names, make_license, signed
from support.patience import PATIENCE_SECONDS, until
from support.serving import free_port
from taco_demo.locate import find_model
from taco_llm.args.flags import GATEWAY, SCHEDULER, WORKER
from taco_proto.config import (
    GatewayConfig,
    LicenseConfig,
    ModelConfig,
    SchedulerConfig,
    WorkerConfig,
)
from taco_proto.licenses import LICENSE_INVALID

_, HOST = gpu_names(2)
NUM_TOKENS = 200
# The answer takes at least as long as a slow machine needs to hear of a license.
STEP_SECONDS = 0.02


LONG = {"prompt": [1, 2, 3], "temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True}


class Service:
    """A gateway, a scheduler and workers with these licenses."""

    def __init__(self, directory: Path, *licenses: LicenseConfig) -> None:
        path = find_model("demo")
        assert path is not None
        model = ModelConfig(model=str(path), served_model_names=("demo",))
        self._scheduler_log = directory / "scheduler.log"
        address, port = f"unix:{directory}/scheduler.sock", free_port()
        scheduler = SchedulerConfig(listen=address, log_stats=False)
        gateway = GatewayConfig(
            model=model, scheduler=address, host="127.0.0.1", port=port, log_requests=False
        )
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS)
        self._processes = [
            Process(SCHEDULER, scheduler, self._scheduler_log),
            Process(GATEWAY, gateway, directory / "gateway.log"),
        ]
        for name, license_ in zip("ab", licenses, strict=False):
            worker = WorkerConfig(
                model=model,
                scheduler=address,
                name=name,
                num_threads=1,
                num_blocks=256,
                license=license_,
            )
            log = directory / f"{name}.log"
            self._processes.append(Process(WORKER, worker, log, STEP_SECONDS))
        for process in self._processes:
            process.start()

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    async def ask(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json=LONG | body)

    async def stream(self) -> AsyncIterator[Any]:
        """The chunks of a long answer, with their number at the end."""
        body = LONG | {"stream": True, "stream_options": {"include_usage": True}}
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    async def until_status(self, status: int) -> None:
        async def is_so() -> bool:
            try:
                return (await self.http.get("/health")).status_code == status
            except httpx.TransportError:
                return False

        await until(is_so, f"status {status}")

    async def until_metric(self, line: str) -> None:
        async def is_so() -> bool:
            return line in (await self.http.get("/metrics")).text.splitlines()

        await until(is_so, line)

    async def until_scheduler_logs(self, text: str) -> None:
        async def is_so() -> bool:
            return text in self._scheduler_log.read_text()

        await until(is_so, f"{text!r} in the scheduler's log")


@pytest.fixture
def licenses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LicenseServer]:
    monkeypatch.setattr("taco_license.server.app.HEARTBEAT_SECONDS", 0.1)
    with LicenseServer(tmp_path / "licenses", Clock()) as server:
        yield server


async def upload(licenses: LicenseServer, num_hosts: int, serial: int) -> None:
    """As operators do; the host of the first worker is the second one of two."""
    file = {"file": signed(make_license(num_hosts, serial=serial))}
    async with httpx.AsyncClient() as http:
        (await http.post(f"{licenses.address}/ls", files=file)).raise_for_status()


async def test_a_stream_continues_while_the_license_lapses(
    tmp_path: Path, licenses: LicenseServer
) -> None:
    with ExitStack() as stack:
        nowhere = stack.enter_context(black_hole())
        service = stack.enter_context(
            closing(
                Service(
                    tmp_path,
                    LicenseConfig(
                        host_id=HOST, address=licenses.address, rejection_retry_seconds=0.1
                    ),
                    LicenseConfig(host_id=HOST, address=nowhere, start_seconds=0.1),
                )
            )
        )
        await upload(licenses, num_hosts=2, serial=1)
        await service.until_status(200)
        await service.until_metric('taco:workers{model_name="demo"} 2.0')
        await service.until_metric('taco:worker_licensed{model_name="demo",worker="b"} 0.0')
        # Until the connection times out, worker b may still get a license.
        await service.until_scheduler_logs("the license server does not answer")

        chunks = service.stream()
        first = await anext(chunks)

        async def rest() -> list[Any]:
            return [chunk async for chunk in chunks]

        reading = asyncio.create_task(rest())
        await upload(licenses, num_hosts=1, serial=2)
        await service.until_status(503)
        refused = await service.ask()
        assert not reading.done(), "the stream was to outlast the license"
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == LICENSE_INVALID
        assert refused.headers["x-should-retry"] == "false"
        *answer, usage = [first, *await reading]
        assert answer[-1]["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == NUM_TOKENS

        await upload(licenses, num_hosts=2, serial=3)
        await service.until_status(200)
        again = (await service.ask(max_tokens=20)).json()["choices"][0]["text"]
        assert again
        assert "".join(chunk["choices"][0]["text"] for chunk in answer).startswith(again)
        await service.http.aclose()
