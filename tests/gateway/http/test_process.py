"""`run_gateway` as a process: starts before its engine, drains, and logs why it fails."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.fake_worker import FakeWorker, worker_info
from support.gateway_app import write_tokenizer
from support.patience import PATIENCE_SECONDS
from taco_proto.config import SchedulerConfig
from taco_proto.steps import StepOutput, StepPlan
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService

pytestmark = pytest.mark.process

PROGRAM = """
import json, sys
from taco_gateway.server import run_gateway
from taco_proto.config import GatewayConfig, ModelConfig
values = json.loads(sys.argv[1])
sys.exit(run_gateway(GatewayConfig(model=ModelConfig(**values.pop("model")), **values)))
"""


class GatedWorker(FakeWorker):
    """A fake worker that runs no step while its gate is shut."""

    def __init__(self) -> None:
        super().__init__(worker_info(vocab_size=400, max_model_len=512, num_blocks=512))
        self.gate = threading.Event()
        self.gate.set()

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
        self.gate.wait(PATIENCE_SECONDS)
        super().submit(plan, deliver)


@asynccontextmanager
async def scheduler_at(address: str, worker: GatedWorker) -> AsyncIterator[None]:
    service = SchedulerService(SchedulerConfig(listen=address, log_stats=False))
    server = SchedulerServer(service, address)
    await service.start()
    service.attach_local(worker)
    await server.start()
    try:
        yield
    finally:
        worker.gate.set()
        await service.stop()
        await server.stop()


@contextmanager
def gateway(tmp_path: Path, **config: Any) -> Iterator[subprocess.Popen[str]]:
    values = {
        "model": {"model": str(tmp_path / "model"), "served_model_names": ["m"]},
        "scheduler": f"unix:{tmp_path}/scheduler.sock",
        "uds": str(tmp_path / "http.sock"),
        **config,
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(values)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_until_it_listens(process: subprocess.Popen[str]) -> str:
    """Gives where."""
    assert process.stderr is not None
    for line in process.stderr:
        _, found, address = line.partition("listening on ")
        if found:
            return address.strip()
    raise AssertionError(f"it ended with {process.wait()}")


def connect(tmp_path: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "http.sock"))
    return httpx.AsyncClient(
        transport=transport, base_url="http://gateway", timeout=PATIENCE_SECONDS
    )


async def wait_until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await http.get("/health")).status_code != 200:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.02)


async def wait_until_one_runs(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        active = 'requests_active{model_name="m"} 1.0'
        while active not in (await http.get("/metrics")).text:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)


async def test_serves_from_before_its_engine_until_the_last_answer(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    worker = GatedWorker()
    with gateway(tmp_path) as process:
        wait_until_it_listens(process)
        async with connect(tmp_path) as http:
            assert (await http.get("/health")).status_code == 503
            refused = await http.post("/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            async with scheduler_at(f"unix:{tmp_path}/scheduler.sock", worker):
                await wait_until_ready(http)
                body = {"prompt": "x", "max_tokens": 50, "ignore_eos": True, "seed": 7}
                whole = (await http.post("/v1/completions", json=body)).json()
                metrics = (await http.get("/metrics")).text
                assert 'vllm:time_to_first_token_seconds_count{model_name="m"} 1.0' in metrics
                assert "vllm:num_requests_running" in metrics

                worker.gate.clear()
                running = asyncio.create_task(
                    http.post("/v1/completions", json={**body, "max_tokens": 100})
                )
                await wait_until_one_runs(http)
                process.send_signal(signal.SIGTERM)
                assert process.stderr is not None
                assert any("draining: running" in line for line in process.stderr)
                worker.gate.set()
                answer = (await running).json()
                assert answer["usage"]["completion_tokens"] == 100
                assert answer["choices"][0]["text"].startswith(whole["choices"][0]["text"])
                assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0
    assert not (tmp_path / "http.sock").exists()


OBJECTS = """
import gc
from starlette.responses import JSONResponse

async def count(request, call_next):
    return JSONResponse({"visited": len(gc.get_objects()), "frozen": gc.get_freeze_count()})
"""


async def test_a_garbage_collection_visits_few_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Visiting every loaded module held the event loop, and so every stream, for 75 ms."""
    write_tokenizer(tmp_path / "model")
    (tmp_path / "objects.py").write_text(OBJECTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with gateway(tmp_path, middleware=["objects.count"]) as process:
        wait_until_it_listens(process)
        async with connect(tmp_path) as http:
            counts = (await http.get("/")).json()
    assert counts["visited"] < 0.1 * counts["frozen"]


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    worker = GatedWorker()
    with gateway(tmp_path, drain_timeout=10 * PATIENCE_SECONDS) as process:
        wait_until_it_listens(process)
        async with (
            connect(tmp_path) as http,
            scheduler_at(f"unix:{tmp_path}/scheduler.sock", worker),
        ):
            await wait_until_ready(http)
            worker.gate.clear()
            running = asyncio.create_task(http.post("/v1/completions", json={"prompt": "x"}))
            await wait_until_one_runs(http)
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert any("draining: running" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            assert (await running).status_code == 503
            assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0


def admin_of(tmp_path: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "admin.sock"))
    return httpx.AsyncClient(transport=transport, base_url="http://admin", timeout=PATIENCE_SECONDS)


async def test_readiness_goes_first_and_running_requests_finish(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    worker = GatedWorker()
    with gateway(tmp_path, admin_listen=f"unix:{tmp_path}/admin.sock") as process:
        wait_until_it_listens(process)
        async with (
            connect(tmp_path) as http,
            admin_of(tmp_path) as admin,
            scheduler_at(f"unix:{tmp_path}/scheduler.sock", worker),
        ):
            await wait_until_ready(http)
            assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == 0o600
            assert (await admin.get("/livez")).status_code == 200
            assert (await admin.get("/readyz")).status_code == 200
            worker.gate.clear()
            body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
            running = asyncio.create_task(http.post("/v1/completions", json=body))
            await wait_until_one_runs(http)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (ready := await admin.get("/readyz")).status_code == 200:
                    pass
            assert ready.json() == {"ready": False, "reason": "draining"}
            assert (await admin.get("/livez")).status_code == 200
            assert "vllm:num_requests_running" in (await admin.get("/metrics")).text
            worker.gate.set()
            assert (await running).json()["usage"]["completion_tokens"] == 20
            assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0
    assert not (tmp_path / "admin.sock").exists()


async def test_sighup_reads_the_keys_again(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    path = tmp_path / "keys.json"
    path.write_text('[{"name": "a", "key": "old"}]')
    with gateway(tmp_path, api_key_file=str(path)) as process:
        wait_until_it_listens(process)
        assert process.stderr is not None
        async with connect(tmp_path) as http:

            async def answers(key: str) -> int:
                headers = {"authorization": f"Bearer {key}"}
                return (await http.get("/v1/models", headers=headers)).status_code

            assert [await answers("old"), await answers("new")] == [200, 401]
            for content, words, expected in [
                ('[{"name": "a", "key": "new"}]', "reloaded the API keys", [401, 200]),
                ('[{"name": "a", "ke": "x"}]', "the former keys stay valid", [401, 200]),
            ]:
                path.write_text(content)
                process.send_signal(signal.SIGHUP)
                assert any(words in line for line in process.stderr)
                assert [await answers("old"), await answers("new")] == expected
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    "problem",
    [
        "admin port in use",
        "bad key file",
        "port in use",
        "no such address",
        "no tokenizer",
        "no TLS key",
    ],
)
def test_a_failed_start_logs_one_line(tmp_path: Path, problem: str) -> None:
    write_tokenizer(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config: dict[str, Any] = {
            "port in use": {"uds": None, "host": "127.0.0.1", "port": taken.getsockname()[1]},
            "admin port in use": {"admin_listen": f"127.0.0.1:{taken.getsockname()[1]}"},
            "bad key file": {"api_key_file": str(tmp_path / "none.json")},
            "no such address": {"uds": None, "host": "192.0.2.1", "port": 1},
            "no tokenizer": {"model": {"model": str(tmp_path)}},
            "no TLS key": {"ssl_keyfile": "/none", "ssl_certfile": "/none"},
        }[problem]
        with gateway(tmp_path, **config) as process:
            _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "Traceback" not in stderr
    errors = [line for line in stderr.splitlines() if "ERROR" in line]
    assert len(errors) == 1, stderr


async def test_a_socket_that_was_left_behind_is_taken_over(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "http.sock"))
    with gateway(tmp_path) as process:
        assert wait_until_it_listens(process) == f"unix:{tmp_path}/http.sock"
        async with connect(tmp_path) as http:
            assert (await http.get("/version")).status_code == 200
        with gateway(tmp_path) as second:
            assert await asyncio.to_thread(second.wait, PATIENCE_SECONDS) == 1
        async with connect(tmp_path) as http:
            assert (await http.get("/version")).status_code == 200
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0


def test_imports_without_torch_or_transformers() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import taco_gateway.server\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)
