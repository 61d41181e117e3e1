"""Effect of slow clients on the time between tokens of other clients.

    python -m bench.gateway.slow_client [--pairs 8] [--save]

Rounds alternate in pairs against `taco_llm serve demo`. Beside the measured clients, other clients
request the same answers and read them at once, or one byte per second. The engine's work is the
same in both, so the ratio is the cost of slow clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from statistics import median
from typing import Any

import httpx

from bench import record
from bench.interval import ratio_interval
from bench.services.served_engine import ServedEngine

NUM_MEASURED = 4
NUM_OTHERS = 4
RECEIVE_BUFFER = 4096  # receive buffer of a slow client in bytes: unread data stays with the server
BODY: dict[str, Any] = {
    "prompt": "How do I read a file?",
    "max_tokens": 200,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": 5,  # long lines fill buffers sooner
    "stream": True,
}


async def token_time(http: httpx.AsyncClient) -> float:
    """Returns the mean seconds between two pieces of an answer; several may arrive at once."""
    first, last, count = 0.0, 0.0, 0
    async with http.stream("POST", "/v1/completions", json=BODY) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                last = time.perf_counter()
                first = first or last
                count += 1
    return (last - first) / (count - 1)


async def read_slowly(port: int) -> None:
    """Sends one request and reads a byte per second until it is cancelled."""
    body = json.dumps(BODY).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", port))
        head = b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        await loop.sock_sendall(
            connection, head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        while await loop.sock_recv(connection, 1):  # noqa: ASYNC110  # the pace of reading
            await asyncio.sleep(1.0)


async def measured_round(port: int, num_answers: int, *, slow: bool) -> float:
    """Returns the median time per token over all measured answers."""
    found: list[float] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None) as http:

        async def ask() -> None:
            found.extend([await token_time(http) for _ in range(num_answers)])

        async def other() -> None:
            for _ in range(num_answers):
                if slow:
                    slow_readers.append(asyncio.create_task(read_slowly(port)))
                    await token_time(http)
                else:
                    await asyncio.gather(token_time(http), token_time(http))

        slow_readers: list[asyncio.Task[None]] = []
        await asyncio.gather(
            *(ask() for _ in range(NUM_MEASURED)), *(other() for _ in range(NUM_OTHERS))
        )
        for reader in slow_readers:
            reader.cancel()
        await asyncio.gather(*slow_readers, return_exceptions=True)
    return median(found)


async def compare(port: int, args: argparse.Namespace) -> dict[str, Any]:
    await measured_round(port, 1, slow=False)  # warms up
    found: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(args.pairs):
        for slow in (False, True) if pair % 2 else (True, False):
            found[slow].append(await measured_round(port, args.answers, slow=slow))
    ratio = ratio_interval(found[True], found[False])
    return {
        "itl_ratio": [round(x, 3) for x in (ratio.ratio, ratio.low, ratio.high)],
        "itl_ms": {
            "beside slow readers": round(1e3 * median(found[True]), 3),
            "beside fast readers": round(1e3 * median(found[False]), 3),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--answers", type=int, default=4, help="of each client in a round")
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    engine = ServedEngine("demo", {"max_num_seqs": 64})
    try:
        figures = asyncio.run(compare(engine.port, args))
    finally:
        engine.close()
    print(figures)
    if args.save:
        print(record.save("slow_client", figures))


if __name__ == "__main__":
    main()
