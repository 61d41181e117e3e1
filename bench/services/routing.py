"""Prefix-aware routing beside round-robin with real workers; `bench.scheduler.replicas` simulates
it.

    python -m bench.services.routing [--pairs 6] [--save]

Two deployments run side by side and are measured in alternating pairs: one scheduler with two
workers, and two schedulers with one worker each, which get every other request (round-robin). Each
worker has its own core, shared with a worker of the idle deployment. Requests share prefixes with
others; a worker's blocks hold about 60% of all prefixes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from bench import record
from bench.interval import ratio_interval
from bench.peers.make_checkpoint import SHAPES, make_checkpoint

BLOCK_SIZE = 16
NUM_GROUPS = 16
PREFIX_TOKENS = 256
TAIL_TOKENS = 16
ANSWER_TOKENS = 8
NUM_CLIENTS = 8
CACHED_SHARE = 0.6
START_SECONDS = 120.0

Body = dict[str, Any]


def num_blocks() -> int:
    """Blocks of each worker: enough for all running sequences and part of the prefixes."""
    longest = PREFIX_TOKENS + TAIL_TOKENS + ANSWER_TOKENS
    running = NUM_CLIENTS * (longest - PREFIX_TOKENS + 2 * BLOCK_SIZE)
    return int((running + CACHED_SHARE * NUM_GROUPS * PREFIX_TOKENS) / BLOCK_SIZE)


class Processes:
    """Service processes of one run; all end with it."""

    def __init__(self, directory: str, quantization: str | None) -> None:
        self._directory = directory
        self._quantization = quantization
        self._running: list[subprocess.Popen[bytes]] = []

    def platform(self, name: str, cores: list[int]) -> str:
        """Starts a gateway, a scheduler and a worker per given core set; returns the URL."""
        address = f"unix:{self._directory}/{name}.sock"
        port = _free_port()
        model = f"{self._directory}/model"
        self._start("scheduler", "--listen", address)
        for core in cores:
            flags = ["--num-threads", "1", "--num-gpu-blocks-override", str(num_blocks())]
            if self._quantization is not None:
                flags += ["--quantization", self._quantization]
            self._start("worker", model, "--scheduler", address, *flags, core=core)
        flags = ["--host", "127.0.0.1", "--port", str(port)]
        self._start("gateway", model, "--scheduler", address, *flags)
        url = f"http://127.0.0.1:{port}"
        _wait_for_workers(url, len(cores))
        return url

    def _start(self, service: str, *arguments: str, core: int | None = None) -> None:
        command = [sys.executable, "-m", "taco_llm.cli.main", service, *arguments]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        with Path(self._directory, f"{len(self._running)}.log").open("wb") as log:
            self._running.append(subprocess.Popen(command, stdout=log, stderr=log))

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_workers(url: str, count: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            text = httpx.get(f"{url}/metrics").text
            if re.search(rf"^taco:workers{{[^}}]*}} {float(count)}$", text, re.MULTILINE):
                return
        time.sleep(0.2)
    raise RuntimeError(f"{url} does not have {count} workers")


@dataclass(frozen=True)
class Round:
    """Attributes:
    hit_rate: share of the prompts' tokens that were cached.
    """

    seconds: float
    hit_rate: float


async def ask(urls: list[str], bodies: list[Body]) -> Round:
    """Runs clients that send the next request after their answer, to each URL in turn."""
    work = iter(zip(itertools.cycle(urls), bodies, strict=False))
    usages: list[dict[str, Any]] = []

    async def client(http: httpx.AsyncClient) -> None:
        for url, body in work:
            response = await http.post(f"{url}/v1/completions", json=body)
            response.raise_for_status()
            usages.append(response.json()["usage"])

    started = time.perf_counter()
    async with httpx.AsyncClient(timeout=None) as http:
        await asyncio.gather(*(client(http) for _ in range(NUM_CLIENTS)))
    seconds = time.perf_counter() - started
    num_cached = sum((usage["prompt_tokens_details"] or {})["cached_tokens"] for usage in usages)
    return Round(seconds, num_cached / sum(usage["prompt_tokens"] for usage in usages))


def rounds(num_requests: int) -> Iterator[list[Body]]:
    rng = random.Random(1)

    def tokens(count: int) -> list[int]:
        return rng.choices(range(1000, 100_000), k=count)

    prefixes = [tokens(PREFIX_TOKENS) for _ in range(NUM_GROUPS)]
    while True:
        yield [
            {
                "prompt": rng.choice(prefixes) + tokens(TAIL_TOKENS),
                "max_tokens": ANSWER_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
            }
            for _ in range(num_requests)
        ]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        make_checkpoint(Path(directory, "model"), SHAPES["qwen2-0.5b"])
        processes = Processes(directory, args.quantization)
        try:
            aware = [processes.platform("aware", [0, 1])]
            in_turns = [processes.platform("first", [0]), processes.platform("second", [1])]
            found: dict[bool, list[Round]] = {True: [], False: []}
            for number, bodies in zip(range(1 + args.pairs), rounds(args.requests), strict=False):
                for is_aware in (True, False) if number % 2 else (False, True):
                    result = asyncio.run(ask(aware if is_aware else in_turns, bodies))
                    if number:  # the first round fills the caches
                        found[is_aware].append(result)
                    print(number, "cache-aware" if is_aware else "round-robin", result, flush=True)
        finally:
            processes.stop()
    ratio = ratio_interval([r.seconds for r in found[False]], [r.seconds for r in found[True]])
    return {
        "throughput_ratio": [round(x, 3) for x in (ratio.ratio, ratio.low, ratio.high)],
        "requests_per_second": {
            _name(is_aware): round(args.requests / median(r.seconds for r in results), 3)
            for is_aware, results in found.items()
        },
        "hit_rate": {
            _name(is_aware): round(median(r.hit_rate for r in results), 3)
            for is_aware, results in found.items()
        },
    }


def _name(is_aware: bool) -> str:
    return "cache-aware" if is_aware else "round-robin"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--requests", type=int, default=64, help="of a round")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    figures = measure(args)
    print(figures)
    if args.save:
        print(record.save("routing", figures))


if __name__ == "__main__":
    main()
