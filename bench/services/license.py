"""Throughput of a license server: heartbeats of many workers, uploads and views of a large license.

The server is its own process on one core, and the workers are on another, with Redis if there is
one. Each heartbeat uses its own connection, as workers do. The server's CPU time is reported beside
wall time, because both ends share a small machine.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import uvloop

from bench.record import save
from taco_license.document.issue import issue
from taco_license.document.keys import read_private_key, write_key_pair
from taco_license.document.license_file import Gpu

NUM_GPUS = 10_000
NUM_CLIENTS = 32  # concurrent clients
ROUNDS = 5
START_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heartbeats", type=int, default=10_000, help="heartbeats per round")
    parser.add_argument("--port", type=int, default=10081, help="Redis has the next one")
    parser.add_argument("--save", action="store_true", help="write bench/results/license.json")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    figures = {}
    for ledger in ("sqlite", "redis"):
        with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
            directory = Path(name)
            flags = ["--data-dir", str(directory / "data")]
            if ledger == "redis":
                processes.enter_context(ended(start_redis(directory, args.port + 1)))
                flags = ["--redis-url", f"redis://127.0.0.1:{args.port + 1}"]
            document = make_license(directory)
            server = processes.enter_context(
                ended(start_server(directory, args.port, cores[0], flags))
            )
            url = f"http://127.0.0.1:{args.port}"
            figures[ledger] = measure(url, document, args.heartbeats, server)
    print(json.dumps(figures, indent=2))
    if args.save:
        print(save("license", figures))


@contextmanager
def ended(process: psutil.Popen) -> Iterator[psutil.Popen]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def start_redis(directory: Path, port: int) -> psutil.Popen:
    """Starts Redis with the settings that the documentation recommends."""
    command = f"redis-server --bind 127.0.0.1 --port {port} --appendonly yes"
    redis = psutil.Popen(command.split(), cwd=directory, stdout=subprocess.DEVNULL)
    wait_for_port(port, redis)
    return redis


def make_license(directory: Path) -> bytes:
    write_key_pair(directory / "license.key", directory / "license.pub")
    return issue(
        [Gpu(gpu, "NVIDIA H100 80GB HBM3") for gpu in names()],
        read_private_key(directory / "license.key"),
        app_id="1234",
        customer="somebody",
        expires="1d",
        access_limit=0,
        now=datetime.now(UTC),
    )


def names() -> list[str]:
    return [f"GPU-{index:08x}-cd33-469b-019f-9af0bb76a073" for index in range(NUM_GPUS)]


def start_server(directory: Path, port: int, core: int, flags: Sequence[str]) -> psutil.Popen:
    server = psutil.Popen(
        [
            *(sys.executable, "-m", "taco_llm.cli.main", "license", "serve"),
            *("--host", "127.0.0.1", "--port", str(port), *flags),
            *("--public-key", str(directory / "license.pub")),
        ],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, [core]),
    )
    wait_for_port(port, server)
    return server


def wait_for_port(port: int, process: psutil.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def measure(
    url: str, document: bytes, heartbeats: int, server: psutil.Popen
) -> dict[str, float | int]:
    start = time.perf_counter()
    httpx.post(f"{url}/ls", files={"file": document}, timeout=60).raise_for_status()
    import_seconds = time.perf_counter() - start
    start = time.perf_counter()
    view = httpx.get(f"{url}/ls/view", timeout=60).raise_for_status()
    view_seconds = time.perf_counter() - start
    grant_rate, _ = ask_all(url, names(), server)
    some = (names() * (heartbeats // NUM_GPUS + 1))[:heartbeats]
    rounds = [ask_all(url, some, server) for _ in range(ROUNDS)]
    return {
        "gpus": NUM_GPUS,
        "license_bytes": len(document),
        "view_bytes": len(view.content),
        "import_seconds": round(import_seconds, 3),
        "view_seconds": round(view_seconds, 3),
        "first_leases_per_second": round(grant_rate),
        "heartbeats_per_second": round(statistics.median(rate for rate, _ in rounds)),
        "heartbeats_per_second_min": round(min(rate for rate, _ in rounds)),
        "heartbeats_per_second_max": round(max(rate for rate, _ in rounds)),
        "server_cpu_us_per_heartbeat": round(statistics.median(cpu for _, cpu in rounds)),
    }


def ask_all(url: str, gpus: list[str], server: psutil.Popen) -> tuple[float, float]:
    """Returns requests per second, and the server's CPU time per request in microseconds."""
    cpu, start = cpu_seconds(server), time.perf_counter()
    uvloop.run(_ask_all(url, gpus))
    seconds = time.perf_counter() - start
    return len(gpus) / seconds, 1e6 * (cpu_seconds(server) - cpu) / len(gpus)


def cpu_seconds(server: psutil.Popen) -> float:
    times = server.cpu_times()
    return times.user + times.system


async def _ask_all(url: str, gpus: list[str]) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    left = iter(gpus)

    async def client() -> None:
        for gpu in left:
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps({"gpus": [gpu], "instance": gpu, "started": 1}).encode()
            head = (
                f"POST /ls/lease HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n"
                f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
            )
            writer.write(head.encode() + body)
            status = await reader.readline()
            assert b" 200 " in status, status
            await reader.readuntil(b"}")
            writer.close()

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))


if __name__ == "__main__":
    main()
