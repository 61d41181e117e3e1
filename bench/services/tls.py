"""Cost of mutual TLS between services: a round trip, and a new connection.

    python -m bench.services.tls [--save]

The server is its own process on its own core, and echoes each message. Connections with and without
TLS alternate, so that other load affects both; figures are medians over the turns. CPU time is that
of all threads of both ends.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil

from bench.record import save
from taco_common.grpc_tls import add_port, open_channel
from taco_common.tls import Role
from taco_llm.certificates import issue, make_authority
from taco_proto.config import TlsConfig

SIZES = (1 << 10, 16 << 10)  # a decode step of some hundred sequences, and a step with prompts
TURNS = 15
METHOD = "/bench/Echo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1000, help="messages per turn")
    parser.add_argument("--links", type=int, default=20, help="new connections per turn")
    parser.add_argument("--save", action="store_true", help="write bench/results/tls.json")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_authority(directory)
        for role in (Role.SCHEDULER, Role.WORKER):
            issue(directory, role, timedelta(days=1))
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        server = context.Process(target=serve, args=(theirs, directory, cores[0]), daemon=True)
        server.start()
        os.sched_setaffinity(0, cores[-1:])
        ports: dict[str, int] = ours.recv()
        process = psutil.Process(server.pid)
        figures = asyncio.run(measure(ports, directory, process, args.messages, args.links))
        server.terminate()
        server.join()
        os.sched_setaffinity(0, cores)
    print(json.dumps(figures, indent=2))
    if args.save:
        save("tls", figures)


# ------------------------------------------------------------------ server


def serve(pipe: Connection, directory: Path, core: int) -> None:
    os.sched_setaffinity(0, [core])
    asyncio.run(_serve(pipe, directory))


async def _serve(pipe: Connection, directory: Path) -> None:
    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", {"Echo": handler}),)
    )
    ports = {
        kind: add_port(server, "127.0.0.1:0", tls)
        for kind, tls in kinds(directory, Role.SCHEDULER).items()
    }
    await server.start()
    pipe.send(ports)
    await server.wait_for_termination()


async def _echo(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


def kinds(directory: Path, role: Role) -> dict[str, TlsConfig | None]:
    tls = TlsConfig(
        ca_file=str(directory / "ca.crt"),
        cert_file=str(directory / f"{role}.crt"),
        key_file=str(directory / f"{role}.key"),
    )
    return {"plaintext": None, "tls": tls}


# ------------------------------------------------------------------ client


async def measure(
    ports: dict[str, int],
    directory: Path,
    server: psutil.Process,
    num_messages: int,
    num_links: int,
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    channels = {kind: open_link(ports, kind, directory) for kind in ports}
    for size in SIZES:
        turns: dict[str, list[dict[str, float]]] = {kind: [] for kind in ports}
        for _ in range(TURNS):
            for kind, channel in channels.items():
                turns[kind].append(await exchange(channel, server, size, num_messages))
        figures[f"{size} bytes there and back"] = {k: medians(t) for k, t in turns.items()}
    for channel in channels.values():
        await channel.close()
    links: dict[str, list[dict[str, float]]] = {kind: [] for kind in ports}
    for _ in range(TURNS):
        for kind in ports:
            links[kind].append(await dial(ports, kind, directory, server, num_links))
    figures["a new link"] = {kind: medians(turn) for kind, turn in links.items()}
    return figures


def open_link(ports: dict[str, int], kind: str, directory: Path) -> grpc.aio.Channel:
    options = (("grpc.use_local_subchannel_pool", 1),)  # each channel has its own connection
    tls = kinds(directory, Role.WORKER)[kind]
    return open_channel(f"127.0.0.1:{ports[kind]}", options, tls, Role.SCHEDULER)


async def exchange(
    channel: grpc.aio.Channel, server: psutil.Process, size: int, count: int
) -> dict[str, float]:
    """Returns wall and CPU time of a message, in microseconds."""
    call: grpc.aio.StreamStreamCall = channel.stream_stream(METHOD)()
    message = os.urandom(size)
    await call.write(message)
    await call.read()
    times = []
    before = processor_seconds(server)
    for _ in range(count):
        start = time.perf_counter()
        await call.write(message)
        await call.read()
        times.append(time.perf_counter() - start)
    spent = processor_seconds(server) - before
    call.cancel()
    return {"wall_us": 1e6 * statistics.median(times), "processor_us": 1e6 * spent / count}


async def dial(
    ports: dict[str, int], kind: str, directory: Path, server: psutil.Process, count: int
) -> dict[str, float]:
    """Returns wall and CPU time of a new connection until the first answer, in microseconds."""
    times = []
    before = processor_seconds(server)
    for _ in range(count):
        start = time.perf_counter()
        async with open_link(ports, kind, directory) as channel:
            call: grpc.aio.StreamStreamCall = channel.stream_stream(METHOD)()
            await call.write(b"x")
            await call.read()
            times.append(time.perf_counter() - start)
            call.cancel()
    spent = processor_seconds(server) - before
    return {"wall_us": 1e6 * statistics.median(times), "processor_us": 1e6 * spent / count}


def processor_seconds(server: psutil.Process) -> float:
    """Returns the CPU seconds of both ends since their start."""
    theirs = server.cpu_times()
    return time.process_time() + theirs.user + theirs.system


def medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(turn[name] for turn in turns), 1) for name in turns[0]}


if __name__ == "__main__":
    main()
