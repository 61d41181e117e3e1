"""Time between tokens of other requests while grammars that the server has not seen arrive.

    python -m bench.grammar.unseen [--seconds 30] [--pairs 4] [--num-threads 1] [--save]

`taco_llm serve` runs a model of Qwen2-0.5B's shape. Free requests stream all the time. Beside them
five short requests a second arrive: in one half of a pair each has a schema that is new to the
server (one in 50 of 3,000 properties, the others of 20), in the other half the same requests have
none. The figure is the ratio of the free requests' 99th percentiles; the goal is at most 1.1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench import record
from bench.grammar.inputs import model_folder
from bench.grammar.schemas import wide_schema
from bench.interval import ratio_interval
from bench.services.served_engine import ServedEngine

GRAMMARS_PER_SECOND = 5.0
WIDE_EVERY = 50
NUM_STREAMS = 4
SHORT_ANSWER = 8
STREAM_TOKENS = 400


@dataclass
class Round:
    """Attributes:
    gaps: milliseconds between two tokens of the free streams.
    short: seconds of the short requests.
    """

    gaps: list[float] = field(default_factory=list)
    short: list[float] = field(default_factory=list)


class Load:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/v1/completions"
        self._numbers = iter(range(10**9))

    async def round(self, seconds: float, *, has_grammars: bool) -> Round:
        found = Round()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits) as http:
            end = time.perf_counter() + seconds
            streams = [
                asyncio.create_task(self._stream(http, end, found)) for _ in range(NUM_STREAMS)
            ]
            await asyncio.sleep(1.0)  # the streams' prompts are computed
            found.gaps.clear()
            await self._arrivals(http, end, found, has_grammars=has_grammars)
            await asyncio.gather(*streams)
        return found

    async def _arrivals(
        self, http: httpx.AsyncClient, end: float, found: Round, *, has_grammars: bool
    ) -> None:
        begun, tasks = time.perf_counter(), []
        for number in range(10**9):
            due = begun + number / GRAMMARS_PER_SECOND
            if due >= end:
                break
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            # The wide one comes early, so that short rounds hold one.
            size = 3000 if number % WIDE_EVERY == 5 else 20
            body = _body(f"{next(self._numbers)} fields:", SHORT_ANSWER)
            if has_grammars:
                body["structured_outputs"] = {"json": wide_schema(size, f"{next(self._numbers)}_")}
            tasks.append(asyncio.create_task(self._short(http, body, found)))
        await asyncio.gather(*tasks)

    async def _short(self, http: httpx.AsyncClient, body: dict[str, Any], found: Round) -> None:
        content = await asyncio.to_thread(json.dumps, body)
        begun = time.perf_counter()
        answer = await http.post(self._url, content=content)
        if answer.status_code != 200:
            raise RuntimeError(answer.text[:500])
        found.short.append(time.perf_counter() - begun)

    async def _stream(self, http: httpx.AsyncClient, end: float, found: Round) -> None:
        """One free request after the other; only tokens before `end` are measured."""
        while time.perf_counter() < end:
            body = {**_body(f"{next(self._numbers)} times", STREAM_TOKENS), "stream": True}
            before = None
            async with http.stream("POST", self._url, json=body) as answer:
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.perf_counter()
                    if before is not None:
                        found.gaps.append(1e3 * (now - before))
                    before = now
                    if now >= end:
                        return


def _body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def rounds(load: Load, seconds: float, count: int) -> Iterator[tuple[Round, Round]]:
    """Pairs of rounds, with and without grammars; the first pair warms the server."""
    for number in range(count + 1):
        order = (True, False) if number % 2 else (False, True)
        found = {
            has_grammars: asyncio.run(
                load.round(seconds if number else 5.0, has_grammars=has_grammars)
            )
            for has_grammars in order
        }
        if number:
            yield found[True], found[False]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("/tmp/taco-grammar"))
    parser.add_argument("--seconds", type=float, default=30.0, help="of a round")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--num-threads", type=int, default=1, help="of the worker's kernels")
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    arguments = {
        "load_format": "dummy",
        "num_threads": args.num_threads,
        "max_model_len": 1024,
        "max_num_seqs": 32,
        "num_gpu_blocks_override": 1024,
    }
    engine = ServedEngine(str(model_folder(args.directory)), arguments)
    p99s: tuple[list[float], list[float]] = ([], [])
    medians: tuple[list[float], list[float]] = ([], [])
    try:
        for pair in rounds(Load(engine.port), args.seconds, args.pairs):
            for which, found in enumerate(pair):
                p99s[which].append(float(np.percentile(found.gaps, 99)))
                medians[which].append(float(np.median(found.gaps)))
            print(
                f"gaps of other requests, p99: {p99s[0][-1]:.1f} ms beside grammars, "
                f"{p99s[1][-1]:.1f} ms beside free requests; median {medians[0][-1]:.1f} and "
                f"{medians[1][-1]:.1f} ms; a short request {np.median(pair[0].short):.2f} and "
                f"{np.median(pair[1].short):.2f} s",
                flush=True,
            )
    finally:
        engine.close()
    interval = ratio_interval(*p99s)
    print(f"ratio of the p99: {interval.ratio:.3f} ({interval.low:.3f} to {interval.high:.3f})")
    if args.save:
        figures = {
            "p99_ms": {"beside grammars": p99s[0], "beside free requests": p99s[1]},
            "median_ms": {"beside grammars": medians[0], "beside free requests": medians[1]},
            "ratio_of_p99": [round(n, 3) for n in (interval.ratio, interval.low, interval.high)],
        }
        print(record.save("grammar_unseen", figures))


if __name__ == "__main__":
    main()
