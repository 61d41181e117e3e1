"""API keys, rate limits, probes and disconnects through all services."""

import asyncio
import json
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.checkpoints import make_checkpoint
from support.fake_worker import FakeWorker, worker_info
from support.gateway_app import App
from support.live_gateway import serve
from support.patience import PATIENCE_SECONDS, until, wait_until
from support.scripted_engine import ScriptedEngine, replay
from support.serving import Serving
from taco_gateway.app import create_app
from taco_llm.local_client import LocalClient
from taco_proto.config import GatewayConfig, ModelConfig, SchedulerConfig
from taco_proto.steps import StepOutput, StepPlan
from taco_scheduler.server.service import SchedulerService

KEYS: list[dict[str, Any]] = [
    {"name": "team", "key": "secret-team"},
    {"name": "small", "key": "secret-small", "max_requests_per_minute": 1},
    {"name": "batch", "key": "secret-batch", "priority": "low"},
]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps(KEYS))
    return path


@pytest.fixture(scope="module")
def serving(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    model = make_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)
    flags = ["--served-model-name", "m", "--num-gpu-blocks-override", "256", "--max-num-seqs", "2"]
    flags += ["--log-level", "debug"]  # which names the admin socket
    directory = tmp_path_factory.mktemp("serving")
    with Serving(directory, model, *flags, "--api-key-file", str(key_file)) as running:
        yield running.wait_ready()


def complete(serving: Serving, key: str, max_tokens: int = 3) -> tuple[int, Any, str | None]:
    """Status, body and Retry-After of a completion."""
    body = {"prompt": "x", "max_tokens": max_tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{serving.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            return response.status, json.load(response), None
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers["retry-after"]


def test_a_rate_limited_request_gets_retry_after(serving: Serving) -> None:
    assert complete(serving, "secret-small")[0] == 200
    status, body, retry_after = complete(serving, "secret-small")
    assert status == 429
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert retry_after is not None
    assert 0 < int(retry_after) <= 60
    assert f"try again in {retry_after}s" in body["error"]["message"]
    assert complete(serving, "secret-team")[0] == 200
    assert complete(serving, "nobody")[0] == 401


async def test_offline_requests_are_preempted_without_loss(serving: Serving) -> None:
    is_over = threading.Event()

    def work_offline() -> None:
        while not is_over.is_set():
            status, body, _ = complete(serving, "secret-batch", 400)
            assert (status, body["usage"]["completion_tokens"]) == (200, 400)

    def has_given_way() -> bool:
        assert complete(serving, "secret-team")[0] == 200
        return serving.metric("vllm:num_preemptions_total") > 0

    def is_full() -> bool:
        return serving.metric("vllm:num_requests_waiting") > 0

    async with asyncio.TaskGroup() as group:
        for _ in range(4):  # of which two run
            group.create_task(asyncio.to_thread(work_offline))
        try:
            await asyncio.to_thread(wait_until, is_full, "a full batch")
            await asyncio.to_thread(wait_until, has_given_way, "a preemption")
        finally:
            is_over.set()
    wait_until(serving.is_idle, "an idle service")


def test_admin_socket_probes_and_reloaded_keys(serving: Serving, key_file: Path) -> None:
    found = re.search(r"admin listener on unix:(\S+)", serving.stderr)
    assert found is not None
    transport = httpx.HTTPTransport(uds=found[1])
    with httpx.Client(transport=transport, base_url="http://admin") as admin:
        assert admin.get("/livez").status_code == 200
        assert admin.get("/readyz").json() == {"ready": True}
    key_file.write_text(json.dumps([{"name": "team", "key": "secret-new"}]))
    serving.process.send_signal(signal.SIGHUP)
    wait_until(lambda: complete(serving, "secret-new")[0] == 200, "the new key")
    assert complete(serving, "secret-team")[0] == 401


# -------------------------------------------------------------------- in process


class GatedWorker(FakeWorker):
    """Blocks at its first full batch until the gate opens: no request ends before."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.gate = threading.Event()

    def execute(self, plan: StepPlan) -> StepOutput:
        if plan.slots.size == self.info.max_num_seqs:
            self.gate.wait(PATIENCE_SECONDS)
        return super().execute(plan)


async def test_500_disconnects_free_all_resources() -> None:
    """Streams and whole answers, those that run and those that wait, all cut at once."""
    service = SchedulerService(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, log_stats=False)
    )
    await service.start()
    worker = GatedWorker(worker_info(vocab_size=400, max_model_len=4096, num_blocks=4096))
    service.attach_local(worker)
    client = await LocalClient.connect(service)
    config = GatewayConfig(model=ModelConfig(model="m"), scheduler="", log_requests=False)
    app = create_app(config, client, None)
    async with serve(App(app, ScriptedEngine(replay([])), httpx.AsyncClient())) as port:
        engine = service.engine
        baseline = engine.num_free_blocks
        writers = [await _ask(port, number) for number in range(500)]

        async def all_are_there() -> bool:
            return engine.num_requests == 500 and engine.num_running == 8

        async def all_are_gone() -> bool:
            return engine.num_requests == 0

        await until(all_are_there, "all requests")
        assert engine.num_free_blocks < baseline
        for writer in writers:
            writer.transport.abort()
        worker.gate.set()
        await until(all_are_gone, "the end of all requests")
        assert engine.num_free_blocks == baseline
        assert engine.num_running == engine.num_waiting == 0
    await client.close()
    await service.stop()


async def _ask(port: int, number: int) -> asyncio.StreamWriter:
    body = json.dumps(
        {
            "prompt": [number % 390 + 1] * (number % 40 + 1),
            "max_tokens": 3000,
            "ignore_eos": True,
            "stream": number % 2 == 0,
            "n": 1 + number % 3 // 2,
        }
    ).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    return writer
