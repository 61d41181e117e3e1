"""Soak test: hours of load with clients that disconnect and workers that die; reports growth.

Samples memory, open files and CPU time of each process every few seconds, and the latency of whole
answers. Prints the growth after the warm-up; `--plot` draws all samples. Run it with
`PYTHONPATH=tests`, which holds the cluster helper.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.record import save
from support.cluster import REAL, Cluster, running_cluster
from support.streams import Streams

SAMPLE_SECONDS = 5.0
WARM_UP_SHARE = 0.2
MIB = 2**20


@dataclass
class Life:
    """Samples of one process, from its start to its end."""

    seconds: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


@dataclass
class Soak:
    cluster: Cluster
    ends_at: float
    lives: dict[str, Life] = field(default_factory=dict)  # by name and process id
    latencies: list[tuple[float, float]] = field(default_factory=list)  # time, seconds
    errors: list[str] = field(default_factory=list)
    num_left: int = 0
    num_restarts: int = 0
    started_at: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at

    async def client(self, number: int) -> None:
        """Sends one request after the other and disconnects from every fourth."""
        for turn in itertools.count():
            if self.is_over:
                return
            begin = time.monotonic()
            async with Streams(self.cluster.url(number % 2), [_body(number, turn)]) as streams:
                if turn % 4 == 3:
                    await streams.reach(3)
                    self.num_left += 1
                    continue
                (answer,) = await streams.finish()
            if answer.error or answer.finish_reason != "length":
                self.errors.append(answer.error or f"ended by {answer.finish_reason}")
            self.latencies.append((begin - self.started_at, time.monotonic() - begin))

    async def restart_workers(self, interval: float) -> None:
        """Restarts worker b with SIGKILL and SIGTERM in turn; worker a keeps running, so that its
        growth shows.
        """
        for number in itertools.count():
            await asyncio.sleep(interval)
            worker = self.cluster["b"]
            if number % 2:
                worker.terminate()
                await worker.ended()
            else:
                worker.kill()
            worker.start()
            self.num_restarts += 1

    async def sample(self) -> None:
        while True:
            now = time.monotonic() - self.started_at
            for name, process in self.cluster.processes.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    seen = psutil.Process(process.pid)
                    life = self.lives.setdefault(f"{name} ({process.pid})", Life())
                    life.descriptors.append(seen.num_fds())
                    life.rss_mib.append(seen.memory_info().rss / MIB)
                    life.seconds.append(now)
            await asyncio.sleep(SAMPLE_SECONDS)

    def growth(self) -> dict[str, dict[str, float]]:
        """Growth of processes that ran the whole time: medians of the last fifth less those of the
        fifth after the warm-up.
        """
        total = self.ends_at - self.started_at
        grown = {}
        for name, life in self.lives.items():
            seconds = np.array(life.seconds)
            first = (seconds > WARM_UP_SHARE * total) & (seconds <= 2 * WARM_UP_SHARE * total)
            last = seconds > (1 - WARM_UP_SHARE) * total
            if seconds[0] > WARM_UP_SHARE * total or not first.any() or not last.any():
                continue
            rss, files = np.array(life.rss_mib), np.array(life.descriptors)
            grown[name.partition(" ")[0]] = {
                "rss_mib": round(float(np.median(rss[last])), 1),
                "rss_growth_mib": round(float(np.median(rss[last]) - np.median(rss[first])), 2),
                "descriptors": float(np.median(files[last])),
                "descriptors_growth": float(np.median(files[last]) - np.median(files[first])),
            }
        return grown


def _body(number: int, turn: int) -> dict[str, Any]:
    choose = random.Random(1000 * number + turn % 97)
    question = "How do I read a file? " * choose.randint(0, 20)
    return {
        "prompt": f"{question}What does json.dumps do, {choose.randint(0, 50)}?",
        "max_tokens": choose.randint(8, 64),
        "temperature": choose.choice([0, 0.8]),
        "ignore_eos": True,
        "logprobs": 0,
        "return_tokens_as_token_ids": True,
        "stream": True,
    }


@contextlib.asynccontextmanager
async def background(*coroutines: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def soak(cluster: Cluster, seconds: float, num_clients: int, interval: float) -> Soak:
    await cluster.heal()
    run = Soak(cluster, time.monotonic() + seconds)
    async with background(run.sample(), run.restart_workers(interval)):
        await asyncio.gather(*(run.client(number) for number in range(num_clients)))
    await cluster.heal()  # waits until every block is free
    return run


def plot(run: Soak, path: str) -> None:
    from matplotlib.figure import Figure  # without pyplot there is no window

    figure = Figure(figsize=(10, 9), layout="constrained")
    memory, files, latency = figure.subplots(3, 1, sharex=True)
    for name, life in run.lives.items():
        memory.plot(life.seconds, life.rss_mib, label=name)
        files.plot(life.seconds, life.descriptors)
    latency.plot(*zip(*run.latencies, strict=True), ".", markersize=2)
    memory.set_ylabel("resident memory, MiB")
    files.set_ylabel("open files")
    latency.set_ylabel("latency, s")
    latency.set_xlabel("s")
    memory.legend(fontsize="x-small", ncols=3)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--restart-seconds", type=float, default=60.0)
    parser.add_argument("--plot", metavar="FILE", help="file of the plot, such as soak.png")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster(Path(directory), REAL) as cluster,
    ):
        seconds, interval = options.minutes * 60, options.restart_seconds
        run = asyncio.run(soak(cluster, seconds, options.clients, interval))
    growth = run.growth()
    for name, row in growth.items():
        print(f"{name:12} " + "  ".join(f"{key} {value:g}" for key, value in row.items()))
    latencies = np.array([latency for _, latency in run.latencies])
    figures = {
        "minutes": options.minutes,
        "answers": len(latencies),
        "left_by_their_client": run.num_left,
        "worker_restarts": run.num_restarts,
        "errors": len(run.errors),
        "latency_p50_s": round(float(np.percentile(latencies, 50)), 3),
        "latency_p99_s": round(float(np.percentile(latencies, 99)), 3),
    }
    print("  ".join(f"{key} {value:g}" for key, value in figures.items()))
    for error in run.errors[:10]:
        print("error:", error)
    if options.plot:
        plot(run, options.plot)
    if options.save:
        print(save("soak", figures | {"processes": growth}))
    return 1 if run.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
