"""Largest gap in other clients' streams while one client sends large requests.

    python -m bench.gateway.large_bodies [--rounds 3] [--only NAME ...] [--save]

`taco_llm serve demo` answers four endless streams. Meanwhile one client sends a request of each
kind, each a few times. The figure is the largest gap between two pieces of any stream, from the
first byte of a request to its answer. `nothing` is the gap without such a request: the machine's
own jitter.

The reader of the streams represents other machines, so it must not wait for a CPU: it runs at
real-time priority where that is permitted (root). At normal priority, Linux 6.18 let it wait for a
second behind the process that parses the body, which counted as a gap. Beside the gaps are CPU time
of the gateway's event loop during a request, and the time that the loop and the reader waited for a
CPU. These do not depend on other programs as the gaps do.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import httpx

from bench import record
from bench.services.served_engine import ServedEngine

NUM_STREAMS = 4
NOTHING = "nothing"
UNKNOWN_KEYS = "1,500,000 unknown keys"
NUM_AT_ONCE = 8  # the gateway parses two at a time
QUIET_SECONDS = 3.0
STREAM: dict[str, Any] = {
    "prompt": "How do I read a file?",
    "max_tokens": 400,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}
TEXT = {"type": "text", "text": "a"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GRPC_CHAT = "/taco.v1.Inference/Chat"

Send = Callable[[], str]  # blocks; gives the status


def bodies() -> dict[str, tuple[str, bytes]]:
    """Returns path and body of each HTTP request; the numbers of values are those of an attack."""

    def messages(content: object) -> dict[str, object]:
        return {"messages": [{"role": "user", "content": content}]}

    found: dict[str, tuple[str, object]] = {
        "900,000 bad parts": (CHAT, messages([{"type": "t"}] * 900_000)),
        "700,000 good parts": (CHAT, messages([TEXT] * 700_000)),
        "4,000,000 lists of one id": (COMPLETIONS, {"prompt": [[1]] * 4_000_000}),
        "logit_bias of 1,500,000 keys": (
            COMPLETIONS,
            {"prompt": "x", "logit_bias": {str(i): 1 for i in range(1_500_000)}},
        ),
        UNKNOWN_KEYS: (
            COMPLETIONS,
            {"prompt": "x"} | {f"x{i}": 1 for i in range(1_500_000)},
        ),
        "detokenize 5,000,000 ids": ("/detokenize", {"tokens": [1] * 5_000_000}),
        "detokenize 1,000,000 ids": ("/detokenize", {"tokens": list(range(100, 200)) * 10_000}),
        "a prompt of 1,000,000 ids": (COMPLETIONS, {"prompt": list(range(100, 200)) * 10_000}),
        "a text of 8,000,000 characters": (COMPLETIONS, {"prompt": "words and " * 800_000}),
        "a message of 8,000,000 characters": (CHAT, messages("words and " * 800_000)),
        "2,000 messages": (CHAT, {"messages": [{"role": "user", "content": [TEXT]}] * 2000}),
        "250 KiB of objects": (COMPLETIONS, {"prompt": "x", "x": [{}] * 85_000}),
    }
    return {name: (path, json.dumps(body).encode()) for name, (path, body) in found.items()}


def post(port: int, path: str, body: bytes) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        return str(connection.getresponse().status)
    finally:
        connection.close()


def chat_over_grpc(port: int, body: bytes) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_stream(GRPC_CHAT, lambda data: data, lambda data: data)
        try:
            for _ in ask(body, timeout=120):
                pass
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


def run_at_real_time_priority() -> bool:
    """Gives this thread a CPU before all others; threads that it starts are normal.

    Returns whether that is permitted.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return False
    return True


def cpu_and_wait_ms(thread: str) -> tuple[float, float]:
    """CPU time of a thread, and time that it waited for a CPU, in milliseconds since its start.

    Args:
        thread: its folder under /proc.
    """
    cpu, wait, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    return int(cpu) / 1e6, int(wait) / 1e6


def at_once(send: Send, times: int) -> Send:
    """Sends a request several times at once; gives the statuses."""

    def send_all() -> str:
        with ThreadPoolExecutor(times) as pool:
            return ",".join(sorted(set(pool.map(lambda _: send(), range(times)))))

    return send_all


class Streams:
    """Streams that restart whenever they end; tracks the largest gap in any of them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._largest = 0.0
        self._num_pieces = 0
        self._last: dict[int, float] = {}

    async def read(self, number: int) -> None:
        while True:
            async with self._client.stream("POST", COMPLETIONS, json=STREAM) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        self._note(number)
            self._last.pop(number, None)  # the wait for the next answer does not count

    def _note(self, number: int) -> None:
        now = time.perf_counter()
        self._num_pieces += 1
        self._largest = max(self._largest, now - self._last.get(number, now))
        self._last[number] = now

    async def largest_gap(self, work: asyncio.Future[Any]) -> float:
        """Returns the largest gap in seconds until `work` is done and each stream continued."""
        self._largest = 0.0
        await work
        seen = self._num_pieces
        while self._num_pieces < seen + 4 * NUM_STREAMS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return self._largest


async def measure(
    port: int, gateway_pid: int, sends: dict[str, Send], rounds: int
) -> dict[str, Any]:
    gaps: dict[str, list[float]] = {}
    loads: dict[str, list[tuple[float, float, float]]] = {}
    statuses: dict[str, str] = {}
    loop = f"{gateway_pid}/task/{gateway_pid}"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None) as client:
        streams = Streams(client)
        readers = [asyncio.create_task(streams.read(number)) for number in range(NUM_STREAMS)]
        for _ in range(rounds):
            for name, send in sends.items():
                cpu, wait = cpu_and_wait_ms(loop)
                _, reader_wait = cpu_and_wait_ms("thread-self")
                work = asyncio.ensure_future(asyncio.to_thread(send))
                gaps.setdefault(name, []).append(await streams.largest_gap(work))
                loop_cpu, loop_wait = cpu_and_wait_ms(loop)
                waited = cpu_and_wait_ms("thread-self")[1] - reader_wait
                loads.setdefault(name, []).append((loop_cpu - cpu, loop_wait - wait, waited))
                statuses[name] = work.result()
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return {
        name: {
            "status": statuses[name],
            "largest_gap_ms": round(1e3 * max(found)),
            "median_gap_ms": round(1e3 * median(found)),
            "loop_cpu_ms": round(max(load[0] for load in loads[name])),
            "loop_wait_ms": round(max(load[1] for load in loads[name])),
            "reader_wait_ms": round(max(load[2] for load in loads[name])),
        }
        for name, found in gaps.items()
    }


def quiet() -> str:
    time.sleep(QUIET_SECONDS)
    return "-"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="kinds of requests (default: all)")
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        grpc_port = probe.getsockname()[1]
    engine = ServedEngine("demo", {"max_num_seqs": 16, "grpc_port": grpc_port})
    port = engine.port
    sends: dict[str, Send] = {NOTHING: quiet}
    for name, (path, body) in bodies().items():
        sends[name] = lambda path=path, body=body: post(port, path, body)  # type: ignore[misc]
    sends[f"{NUM_AT_ONCE} x {UNKNOWN_KEYS}"] = at_once(sends[UNKNOWN_KEYS], NUM_AT_ONCE)
    million = b"\x12\x00" * 1_000_000  # empty messages
    sends["gRPC Chat of 1,000,000 messages"] = lambda: chat_over_grpc(grpc_port, million)
    if args.only:
        sends = {name: send for name, send in sends.items() if name in (NOTHING, *args.only)}
    try:
        if not run_at_real_time_priority():
            print("without root the reader may wait for a CPU, which counts as a gap")
        figures = asyncio.run(measure(port, engine.child_pid("gateway"), sends, args.rounds))
    finally:
        engine.close()
    print(
        f"{'milliseconds':36} {'status':>18} {'gap':>5} {'loop CPU':>9} {'wait':>5} {'reader':>7}"
    )
    for name, found in figures.items():
        print(
            f"{name:36} {found['status']:>18} {found['largest_gap_ms']:>5} "
            f"{found['loop_cpu_ms']:>9} {found['loop_wait_ms']:>5} {found['reader_wait_ms']:>7}"
        )
    if args.save:
        print(record.save("large_bodies", figures))


if __name__ == "__main__":
    main()
