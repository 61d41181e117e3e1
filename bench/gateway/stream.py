"""Tokens per second through one gateway: HTTP in front, gRPC behind, a worker that costs nothing.

The gateway has its own core; the scheduler and the client share the other. The engine runs as fast
as it can, or with a step every `--step-ms`. If the gateway is behind, several tokens travel in one
chunk, so chunks per second are reported, too.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

import numpy as np
import uvloop

from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from taco_gateway.server import run_gateway
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_proto.config import GatewayConfig, ModelConfig, SchedulerConfig
from taco_proto.steps import WorkerInfo
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService

PROMPT = "def fibonacci(n: int) -> int:"
TEXT = "The engine serves many requests at once, and every one of them sees its own tokens. "
READY_SECONDS = 30


def run_scheduler(address: str, model: ModelConfig, step_ms: float, max_tokens: int) -> None:
    os.sched_setaffinity(0, {1})
    uvloop.run(_serve(address, model, step_ms, max_tokens))


async def _serve(address: str, model: ModelConfig, step_ms: float, max_tokens: int) -> None:
    tokenizer = load_tokenizer(model)
    assert tokenizer is not None
    info = WorkerInfo(
        name="fake",
        model="fake",
        max_model_len=max_tokens + 256,
        vocab_size=1_000_000,
        eos_token_ids=(999_999,),
        block_size=16,
        num_blocks=100_000,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_logprobs=0,
    )
    tokens = np.array(tokenizer.encode(TEXT, add_special_tokens=False), dtype=np.int32)
    service = SchedulerService(SchedulerConfig(listen=address, log_stats=False))
    server = SchedulerServer(service, address)
    await service.start()
    service.attach_local(FakeExecutor(info, tokens, step_seconds=step_ms / 1e3))
    await server.start()
    await asyncio.Event().wait()


def run_pinned_gateway(config: GatewayConfig, cpu_seconds: "multiprocessing.Queue[float]") -> None:
    os.sched_setaffinity(0, {0})
    signal.signal(signal.SIGUSR1, lambda *_: cpu_seconds.put(time.process_time()))
    sys.exit(run_gateway(config))


class Client(asyncio.Protocol):
    """One stream: counts chunks as they arrive and reads the usage at the end."""

    def __init__(self, request: bytes, done: "asyncio.Future[tuple[int, int]]") -> None:
        self._request = request
        self._done = done
        self._num_chunks = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._num_chunks += data.count(b'"text":')
        self._tail = (self._tail + data)[-2000:]

    def connection_lost(self, error: Exception | None) -> None:
        usage = self._tail.rpartition(b'"usage":')[2].partition(b"}\n\n")[0]
        try:
            tokens = json.loads(usage)["completion_tokens"]
        except (ValueError, KeyError):
            self._done.set_exception(RuntimeError(self._tail.decode(errors="replace")))
        else:
            self._done.set_result((tokens, self._num_chunks))


async def run_clients(port: int, num_streams: int, max_tokens: int) -> tuple[int, int]:
    """Returns tokens and chunks of all streams."""
    body = json.dumps(
        {
            "prompt": PROMPT,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    loop = asyncio.get_running_loop()
    streams = [loop.create_future() for _ in range(num_streams)]
    for stream in streams:
        await loop.create_connection(partial(Client, request, stream), "127.0.0.1", port)
    counts = await asyncio.gather(*streams)
    return sum(tokens for tokens, _ in counts), sum(chunks for _, chunks in counts)


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    demo = Path(__file__).parents[2] / "demo/taco_demo/models/demo"
    parser.add_argument("--tokenizer", default=str(demo), help="directory of a tokenizer")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1000, help="tokens per stream")
    parser.add_argument(
        "--step-ms",
        type=float,
        default=0.0,
        help="duration of a step in milliseconds; 0: as fast as possible",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=18_080)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()

    model = ModelConfig(model=arguments.tokenizer)
    context = multiprocessing.get_context("spawn")
    cpu_seconds: multiprocessing.Queue[float] = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        address = f"unix:{directory}/scheduler"
        config = GatewayConfig(
            model=model,
            scheduler=address,
            host="127.0.0.1",
            port=arguments.port,
            log_requests=False,
            uvicorn_log_level="warning",
        )
        engine = (address, model, arguments.step_ms, arguments.tokens)
        scheduler = context.Process(target=run_scheduler, args=engine, daemon=True)
        gateway = context.Process(
            target=run_pinned_gateway, args=(config, cpu_seconds), daemon=True
        )
        scheduler.start()
        gateway.start()
        all_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {1})
        try:
            wait_until_ready(arguments.port)
            assert gateway.pid is not None
            uvloop.run(run_clients(arguments.port, 4, 50))  # warms up
            rounds = []
            for _ in range(arguments.rounds):
                os.kill(gateway.pid, signal.SIGUSR1)
                cpu = -cpu_seconds.get(timeout=10)
                start = time.perf_counter()
                tokens, chunks = uvloop.run(
                    run_clients(arguments.port, arguments.streams, arguments.tokens)
                )
                wall = time.perf_counter() - start
                os.kill(gateway.pid, signal.SIGUSR1)
                cpu += cpu_seconds.get(timeout=10)
                rounds.append((tokens / wall, chunks / wall, 1e6 * cpu / chunks, cpu / wall))
        finally:
            gateway.terminate()
            gateway.join()
            scheduler.terminate()
            os.sched_setaffinity(0, all_cores)
    names = ("tokens_per_s", "chunks_per_s", "gateway_cpu_us_per_chunk", "gateway_cpu_share")
    figures = {
        name: round(statistics.median(column), 2)
        for name, column in zip(names, zip(*rounds, strict=True), strict=True)
    }
    figures |= {"streams": arguments.streams, "step_ms": arguments.step_ms}
    for name, value in figures.items():
        print(f"{name:>26}: {value:,}")
    if arguments.save:
        paced = f"_{arguments.step_ms:g}ms" if arguments.step_ms else ""
        print(f"saved {save(f'gateway_stream{paced}', figures)}")


if __name__ == "__main__":
    main()
