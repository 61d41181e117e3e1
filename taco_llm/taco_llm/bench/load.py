"""The load generator: arrival times of requests, and the limit of requests in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import numpy as np
from tqdm import tqdm

from taco_llm.bench.timeline import Timeline
from taco_llm.bench.workload import BenchRequest

Send = Callable[[BenchRequest, float], Awaitable[Timeline]]


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Arrival times of requests in seconds after the start. The first request is sent at once.

    The time between two requests is gamma distributed with mean 1 / `rate` and shape `burstiness`;
    shape 1 is exponential, a Poisson process. An infinite rate sends all requests at once.
    """
    if rate == float("inf"):
        return [0.0] * count
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(burstiness, 1 / (rate * burstiness), size=count)
    gaps[0] = 0.0
    times: list[float] = np.cumsum(gaps).tolist()
    return times


async def run_load(
    send: Send,
    requests: Sequence[BenchRequest],
    arrivals: Sequence[float],
    max_concurrency: int | None,
    progress: "tqdm[Any]",
) -> tuple[list[Timeline], float]:
    """Sends `requests` at their arrival times; returns their timelines and the run's duration."""
    slots = nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    origin = perf_counter()

    async def one(request: BenchRequest) -> Timeline:
        async with slots:
            timeline = await send(request, origin)
        progress.update()
        return timeline

    async with asyncio.TaskGroup() as group:
        tasks = []
        for request, arrival in zip(requests, arrivals, strict=True):
            delay = origin + arrival - perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(group.create_task(one(request)))
    timelines = [task.result() for task in tasks]
    return timelines, max(timeline.end for timeline in timelines)
