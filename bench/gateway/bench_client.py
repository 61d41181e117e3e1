"""CPU cost of `taco_llm bench serve`'s client per streamed token, and its highest read rate.

A server that writes prepared chunks has one core, the client the other. Paced: each stream gets a
chunk every `--step-ms`. Unpaced: chunks come as fast as the server can write them. For comparison,
httpx reads the same streams.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import time
from functools import partial

import httpx
import uvloop
from tqdm import tqdm

from bench.record import save
from taco_llm.bench.http_exchange import Server
from taco_llm.bench.load import Send, run_load
from taco_llm.bench.openai_client import OpenAIClient
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.bench.timeline import Timeline
from taco_llm.bench.workload import BenchRequest

START = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1_700_000_000}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(event: bytes) -> bytes:
    """Formats one server-sent event as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def event(content: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % json.dumps({**START, "model": "bench", **content}).encode()


def run_server(port: int, num_tokens: int, step_ms: float) -> None:
    os.sched_setaffinity(0, {1})
    choice = {"index": 0, "text": " token", "logprobs": None, "finish_reason": None}
    token = frame(event({"choices": [choice], "usage": None}))
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": num_tokens + 1}
    ending = frame(event({"choices": [], "usage": usage})) + frame(b"data: [DONE]\n\n")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a probe whether the server listens
            writer.close()
            return
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        writer.write(HEAD)
        due = time.perf_counter()
        for _ in range(num_tokens):
            writer.write(token)
            if step_ms:
                due += step_ms / 1e3
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            else:
                await writer.drain()
        writer.write(ending + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=1024)
        await server.serve_forever()

    uvloop.run(serve())


async def read_with_httpx(
    client: httpx.AsyncClient, url: str, _: BenchRequest, origin: float
) -> Timeline:
    """Reads a stream with httpx: arrival time and text of each chunk, and the usage."""
    timeline = Timeline(start=time.perf_counter() - origin)
    async with client.stream("POST", url, json={"prompt": [1]}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:") and line[5:].strip() != "[DONE]":
                content = json.loads(line[5:])
                if content["choices"]:
                    timeline.chunks.append(time.perf_counter() - origin)
                    timeline.text += content["choices"][0]["text"]
                else:
                    timeline.output_tokens = content["usage"]["completion_tokens"]
    timeline.end = timeline.chunks[-1]
    return timeline


async def measure(library: str, port: int, num_streams: int) -> tuple[float, float]:
    """Measures tokens per second and microseconds of CPU per token."""
    args = BenchServeArgs(port=port)
    requests = [BenchRequest([1], 1, 1)] * num_streams
    server = Server(args.url)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as http:
        send: Send = OpenAIClient(server, args, "bench", None).send
        if library == "httpx":
            send = partial(read_with_httpx, http, args.url + args.endpoint)
        cpu = -time.process_time()
        timelines, seconds = await run_load(
            send, requests, [0.0] * num_streams, None, tqdm(disable=True)
        )
        cpu += time.process_time()
    assert all(timeline.error is None for timeline in timelines), timelines[0].error
    tokens = sum(timeline.output_tokens for timeline in timelines)
    assert tokens == sum(len(timeline.chunks) for timeline in timelines)
    return tokens / seconds, 1e6 * cpu / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="tokens per stream")
    parser.add_argument(
        "--step-ms", type=float, default=20.0, help="milliseconds between chunks of a paced stream"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=18_090)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    paces = {"paced": arguments.step_ms, "flat_out": 0.0}
    servers = [
        context.Process(
            target=run_server, args=(arguments.port + i, arguments.tokens, step), daemon=True
        )
        for i, step in enumerate(paces.values())
    ]
    for server in servers:
        server.start()
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    figures: dict[str, float] = {"streams": arguments.streams, "step_ms": arguments.step_ms}
    try:
        for i, pace in enumerate(paces):
            wait_until_ready(arguments.port + i)
            rounds: dict[str, list[tuple[float, float]]] = {"taco": [], "httpx": []}
            for _ in range(arguments.rounds):
                for library, measured in rounds.items():
                    run = measure(library, arguments.port + i, arguments.streams)
                    measured.append(uvloop.run(run))
            for library, measured in rounds.items():
                rate, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
                figures[f"{pace}_{library}_tokens_per_s"] = round(rate)
                figures[f"{pace}_{library}_cpu_us_per_token"] = round(cpu, 2)
    finally:
        for server in servers:
            server.terminate()
            server.join()
        os.sched_setaffinity(0, all_cores)
    for name, value in figures.items():
        print(f"{name:>36}: {value:,}")
    if arguments.save:
        print(f"saved {save('bench_client', figures)}")


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return Server(f"http://127.0.0.1:{port}").find()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
