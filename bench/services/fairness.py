"""Time to first token of one key while another key floods the server, over HTTP.

Two keys of equal weight send requests to one server at random times. One sends half of its share in
every round. The other alternates between its share and 20 times that. The result is the ratio of
the first key's 99th percentiles, with a 95% interval over the pairs of rounds.

The worker is simulated: a step takes `--step-ms`, so only queues, slots and the gateway matter.
With `--demo` the server is `taco_llm serve demo`, on the same machine as the clients.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop

from bench.gateway.stream import wait_until_ready
from bench.interval import ratio_interval
from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from bench.services.served_engine import ServedEngine
from taco_gateway.server import run_gateway
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_proto.config import GatewayConfig, ModelConfig, SchedulerConfig
from taco_proto.steps import WorkerInfo
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService

DEMO = Path(__file__).parents[2] / "demo/taco_demo/models/demo"
TEXT = "The engine serves many requests at once, and every one of them sees its own tokens. "
KEYS = [{"name": "steady", "key": "steady"}, {"name": "flood", "key": "flood"}]
FLOOD = 20.0
MAX_WAITING = 64
NUM_SLOTS = 16
PROMPT_WORDS = 64


# ----------------------------------------------------------------- server


def run_fake_scheduler(address: str, step_ms: float) -> None:
    uvloop.run(_serve(address, step_ms))


async def _serve(address: str, step_ms: float) -> None:
    tokenizer = load_tokenizer(ModelConfig(model=str(DEMO)))
    assert tokenizer is not None
    info = WorkerInfo(
        name="fake",
        model="fake",
        max_model_len=4096,
        vocab_size=1_000_000,
        eos_token_ids=(999_999,),
        block_size=16,
        num_blocks=10_000,
        max_num_seqs=NUM_SLOTS,
        max_num_batched_tokens=2048,
        max_logprobs=0,
    )
    config = SchedulerConfig(listen=address, max_waiting_requests=MAX_WAITING, log_stats=False)
    tokens = np.array(tokenizer.encode(TEXT, add_special_tokens=False), dtype=np.int32)
    service = SchedulerService(config)
    server = SchedulerServer(service, address)
    await service.start()
    service.attach_local(FakeExecutor(info, tokens, step_seconds=step_ms / 1e3))
    await server.start()
    await asyncio.Event().wait()


def run_gateway_process(config: GatewayConfig) -> None:
    sys.exit(run_gateway(config))


@contextmanager
def fake_server(port: int, key_file: str, step_ms: float) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        address = f"unix:{directory}/scheduler"
        config = GatewayConfig(
            model=ModelConfig(model=str(DEMO)),
            scheduler=address,
            host="127.0.0.1",
            port=port,
            api_key_file=key_file,
            log_requests=False,
            uvicorn_log_level="warning",
        )
        scheduler = context.Process(target=run_fake_scheduler, args=(address, step_ms), daemon=True)
        gateway = context.Process(target=run_gateway_process, args=(config,), daemon=True)
        scheduler.start()
        gateway.start()
        try:
            wait_until_ready(port)
            yield port
        finally:
            gateway.terminate()
            gateway.join()
            scheduler.terminate()


@contextmanager
def demo_server(key_file: str) -> Iterator[int]:
    arguments = {
        "api_key_file": key_file,
        "max_num_seqs": NUM_SLOTS,
        "max_waiting_requests": MAX_WAITING,
    }
    engine = ServedEngine("demo", arguments)
    try:
        yield engine.port
    finally:
        engine.close()


# ----------------------------------------------------------------- clients


@dataclass
class Answers:
    """Answers to one key in a round.

    Attributes:
        first_tokens: seconds from the request to its first chunk.
        statuses: number of answers by HTTP status.
    """

    first_tokens: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


async def ask(port: int, key: str, number: int, max_tokens: int, answers: Answers) -> None:
    """Streams one answer; no two prompts share a prefix."""
    body = json.dumps(
        {
            "prompt": f"{number} " * PROMPT_WORDS,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
            b"authorization: Bearer %b\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
        )
        status = int((await reader.readline()).split()[1])
        if status == 200:
            await reader.readuntil(b"data: ")
            answers.first_tokens.append(time.perf_counter() - start)
        await reader.read()
        answers.statuses[status] += 1
    finally:
        writer.close()


class Load:
    """Requests at random times: a Poisson process for each key."""

    def __init__(self, port: int, max_tokens: int) -> None:
        self._port = port
        self._max_tokens = max_tokens
        self._numbers = iter(range(10**9))

    async def capacity(self, seconds: float) -> float:
        """Measures answers per second under permanent load."""
        answers = Answers()
        end = time.perf_counter() + seconds

        async def keep_asking() -> None:
            while time.perf_counter() < end:
                await self._ask("steady", answers)

        start = time.perf_counter()
        await asyncio.gather(*(keep_asking() for _ in range(2 * NUM_SLOTS)))
        return answers.statuses[200] / (time.perf_counter() - start)

    async def round(self, steady: float, other: float, seconds: float) -> tuple[Answers, Answers]:
        """Returns the answers to both keys at the given requests per second. Only the second half
        is measured, when the queue is as full as it gets.
        """
        flood, measured = Answers(), Answers()
        await asyncio.gather(
            self._poisson("flood", other, 1.5 * seconds, flood),
            self._poisson("steady", steady, 0.5 * seconds, Answers()),
            self._poisson("steady", steady, seconds, measured, after=0.5 * seconds),
        )
        return measured, flood

    async def _poisson(
        self, key: str, rate: float, seconds: float, answers: Answers, *, after: float = 0.0
    ) -> None:
        await asyncio.sleep(after)
        end = time.perf_counter() + seconds
        at = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            while (at := at + random.expovariate(rate)) < end:
                await asyncio.sleep(at - time.perf_counter())
                tasks.create_task(self._ask(key, answers))

    async def _ask(self, key: str, answers: Answers) -> None:
        await ask(self._port, key, next(self._numbers), self._max_tokens, answers)


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, share))


async def compare(port: int, arguments: argparse.Namespace) -> dict[str, object]:
    load = Load(port, arguments.tokens)
    await load.capacity(2.0)  # warms up
    capacity = await load.capacity(arguments.seconds / 2)
    share = capacity / 2
    print(f"capacity: {capacity:.1f} answers a second")
    names = ("its share", f"{FLOOD:g} times its share")
    tails: list[list[float]] = [[], []]
    medians: list[list[float]] = [[], []]
    statuses: list[Counter[int]] = [Counter(), Counter()]
    for pair in range(arguments.pairs):
        for arm in (0, 1) if pair % 2 == 0 else (1, 0):
            factor = (1.0, FLOOD)[arm]
            steady, flood = await load.round(share / 2, factor * share, arguments.seconds)
            if set(steady.statuses) != {200}:
                raise RuntimeError(f"the steady key was refused: {steady.statuses}")
            tails[arm].append(percentile(steady.first_tokens, 99))
            medians[arm].append(percentile(steady.first_tokens, 50))
            statuses[arm] += flood.statuses
            print(
                f"pair {pair + 1}, the other asks for {names[arm]}: first token of "
                f"{len(steady.first_tokens)} answers {1e3 * medians[arm][-1]:.0f} ms median, "
                f"{1e3 * tails[arm][-1]:.0f} ms p99; the other's answers {dict(flood.statuses)}"
            )
    interval = ratio_interval(tails[1], tails[0])
    print(f"p99 ratio: {interval.ratio:.2f} ({interval.low:.2f} to {interval.high:.2f})")
    return {
        "capacity_per_s": round(capacity, 2),
        "p99_ratio": round(interval.ratio, 3),
        "p99_ratio_interval": [round(interval.low, 3), round(interval.high, 3)],
        "arms": [
            {
                "other_key_asks_for": names[arm],
                "p99_ms": round(1e3 * statistics.median(tails[arm]), 1),
                "median_ms": round(1e3 * statistics.median(medians[arm]), 1),
                "others_answers": {str(code): n for code, n in sorted(statuses[arm].items())},
            }
            for arm in (0, 1)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", action="store_true", help="measure taco_llm serve demo")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured seconds of a round")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument(
        "--step-ms", type=float, default=20.0, help="duration of a step in milliseconds"
    )
    parser.add_argument("--port", type=int, default=18_090)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory() as directory:
        key_file = Path(directory) / "keys.json"
        key_file.write_text(json.dumps(KEYS))
        server = (
            demo_server(str(key_file))
            if arguments.demo
            else fake_server(arguments.port, str(key_file), arguments.step_ms)
        )
        with server as port:
            figures = uvloop.run(compare(port, arguments))
    if arguments.save:
        print(f"saved {save('fairness_demo' if arguments.demo else 'fairness', figures)}")


if __name__ == "__main__":
    main()
