"""How many replicas one scheduler carries: its CPU time by number of replicas.

    python -m bench.scheduler.load [--replicas 1 2 4 8] [--save]

The scheduler is its own process, as in production. One other process holds the streams of all
workers; they compute nothing and answer each plan after the time of a step. One client keeps every
slot decoding, and receives tokens without reading them. The limit is the scheduler's main thread,
which runs the engine and gRPC: when it is always busy, steps come late.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import AsyncIterator, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import psutil

from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
from taco_proto.convert import (
    step_output_to_pb,
    step_plan_from_pb,
    submit_to_pb,
    worker_info_to_pb,
)
from taco_proto.requests import GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_proto.steps import WorkerInfo

PROMPT_TOKENS = 64
OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)
BOUNDS = ("--max-waiting-requests", str(10**6), "--max-waiting-tokens", str(2**31))
HEARTBEAT_SECONDS = 2.0
START_SECONDS = 120.0
SETTLE_SECONDS = 0.3
MAX_REPLIES = 2**20


class Replies:
    """Seconds from each output that a worker sent to the next plan that it received.

    It is shared memory: the workers' process adds, and the parent reads.
    """

    def __init__(self, context: BaseContext) -> None:
        self._seconds = context.Array("d", MAX_REPLIES, lock=False)
        self._count = context.Value("q", 0, lock=False)

    def __len__(self) -> int:
        return int(self._count.value)

    def add(self, seconds: float) -> None:
        self._seconds[self._count.value % MAX_REPLIES] = seconds
        self._count.value += 1

    def percentile(self, percent: float, first: int) -> float:
        """Of the replies from number `first` on, in microseconds."""
        return 1e6 * float(np.percentile(self._seconds[first : len(self)], percent))


def worker_info(number: int, num_sequences: int) -> WorkerInfo:
    return WorkerInfo(
        name=f"worker-{number}",
        model="none",
        max_model_len=131_072,
        vocab_size=128_256,
        eos_token_ids=(128_001, 128_009),
        block_size=16,
        num_blocks=60_000,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=2048,
        max_logprobs=0,
    )


# ------------------------------------------------------------- workers


def run_workers(
    address: str, num_replicas: int, num_sequences: int, step_seconds: float, replies: Replies
) -> None:
    asyncio.run(_run_workers(address, num_replicas, num_sequences, step_seconds, replies))


async def _run_workers(
    address: str, num_replicas: int, num_sequences: int, step_seconds: float, replies: Replies
) -> None:
    tokens = np.random.default_rng(0).integers(0, 100_000, 10_007).astype(np.int32)
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for number in range(num_replicas):
            channel = grpc.aio.insecure_channel(
                address, options=(*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
            )
            await stack.enter_async_context(channel)
            executor = FakeExecutor(worker_info(number, num_sequences), tokens)
            # Spread over a step, as if they had started at different times.
            phase = step_seconds * number / num_replicas
            workers.append(
                _run_worker(SchedulerStub(channel), executor, step_seconds, phase, replies)
            )
        await asyncio.gather(*workers)


async def _run_worker(
    stub: SchedulerStub,
    executor: FakeExecutor,
    step_seconds: float,
    phase: float,
    replies: Replies,
) -> None:
    call = stub.Attach()
    hello = worker_info_to_pb(executor.info)
    await call.write(pb.WorkerMessage(hello=hello))
    writing = asyncio.Lock()  # a stream takes one message at a time
    heart = asyncio.create_task(_beat(call, writing))
    plans: asyncio.Queue[pb.StepPlan | None] = asyncio.Queue()
    sent_at: deque[float] = deque()  # of outputs that no plan has followed yet
    reading = asyncio.create_task(_read_plans(call, plans, sent_at, replies))
    due = time.perf_counter() + phase
    try:
        while (plan := await plans.get()) is not None:
            output = executor.execute(step_plan_from_pb(plan))
            due = max(due + step_seconds, time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())
            message = pb.WorkerMessage(output=step_output_to_pb(output))
            async with writing:
                sent_at.append(time.perf_counter())
                await call.write(message)
    except grpc.aio.AioRpcError:
        pass  # the scheduler has ended
    finally:
        heart.cancel()
        reading.cancel()


async def _read_plans(
    call: Any,
    plans: "asyncio.Queue[pb.StepPlan | None]",
    sent_at: "deque[float]",
    replies: Replies,
) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        while (command := await call.read()) is not grpc.aio.EOF:
            if command.HasField("plan"):
                if sent_at:
                    replies.add(time.perf_counter() - sent_at.popleft())
                plans.put_nowait(command.plan)
    plans.put_nowait(None)


async def _beat(call: grpc.aio.StreamStreamCall, writing: asyncio.Lock) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        async with writing:
            await call.write(pb.WorkerMessage(heartbeat=pb.Heartbeat()))


# -------------------------------------------------------------- client


async def submits(num_requests: int, ending: asyncio.Event) -> AsyncIterator[bytes]:
    hello = pb.GatewayHello(protocol_version=PROTOCOL_VERSION, name="bench")
    yield pb.GatewayMessage(hello=hello).SerializeToString()
    random = np.random.default_rng(1)
    for handle in range(num_requests):
        request = GenerateRequest(
            handle=handle,
            request_id=f"request-{handle}",
            token_ids=array("i", random.integers(0, 100_000, PROMPT_TOKENS).tolist()).tobytes(),
            sampling=SamplingParams(seed=handle, max_tokens=100_000),
        )
        yield pb.GatewayMessage(submit=submit_to_pb(request, time.monotonic())).SerializeToString()
    await ending.wait()


async def drain(call: grpc.aio.StreamStreamCall) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass


async def _stats(channel: grpc.aio.Channel) -> pb.StatsReply:
    return await SchedulerStub(channel).Stats(pb.StatsRequest(), timeout=60)


async def until_running(channel: grpc.aio.Channel, count: int) -> None:
    async with asyncio.timeout(START_SECONDS):
        while (await _stats(channel)).num_running < count:  # noqa: ASYNC110 (no event to wait for)
            await asyncio.sleep(0.1)


async def until_workers(channel: grpc.aio.Channel, count: int) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if (await _stats(channel)).num_workers == count:
                    return
            await asyncio.sleep(0.1)


def num_steps(stats: pb.StatsReply) -> float:
    lines = stats.prometheus.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("taco:steps_total"))


def thread_seconds(process: psutil.Process) -> tuple[float, float]:
    """Returns the CPU time of the main thread and of all threads, in nanosecond resolution."""
    tasks = Path(f"/proc/{process.pid}/task")
    times = {
        task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()
    }
    return times[str(process.pid)] / 1e9, sum(times.values()) / 1e9


async def measure(
    address: str,
    process: psutil.Process,
    num_replicas: int,
    num_sequences: int,
    seconds: float,
    replies: Replies,
) -> dict[str, float]:
    """Measures for `seconds`, once every slot decodes."""
    ending = asyncio.Event()
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await until_workers(channel, num_replicas)
        # The messages stay bytes: the client's own work on tokens is not measured.
        generate: grpc.aio.StreamStreamMultiCallable = channel.stream_stream(
            "/taco.v1.Scheduler/Generate"
        )
        call = generate(submits(num_replicas * num_sequences, ending))
        reader = asyncio.create_task(drain(call))
        await until_running(channel, num_replicas * num_sequences)
        # Statistics take longer than a step, so they are requested outside of the timing.
        # They count the steps until the call started: the reply is formatted after that.
        settled = time.perf_counter()
        first = num_steps(await _stats(channel))
        await asyncio.sleep(SETTLE_SECONDS)
        first_reply = len(replies)
        start, main, all_threads = time.perf_counter(), *thread_seconds(process)
        await asyncio.sleep(seconds)
        after_main, after_all = thread_seconds(process)
        main, all_threads = after_main - main, after_all - all_threads
        elapsed = time.perf_counter() - start
        reply_p50, reply_p99 = (replies.percentile(percent, first_reply) for percent in (50, 99))
        asked = time.perf_counter()
        steps = num_steps(await _stats(channel)) - first
        steps *= elapsed / (asked - settled)
        ending.set()
        reader.cancel()
    return {
        "steps_per_second": steps / elapsed,
        "main_thread_share": main / elapsed,
        "process_share": all_threads / elapsed,
        "main_thread_us_per_step": 1e6 * main / steps,
        "process_us_per_step": 1e6 * all_threads / steps,
        "reply_p50_us": reply_p50,
        "reply_p99_us": reply_p99,
    }


# ------------------------------------------------------------- processes


@contextlib.contextmanager
def scheduler(directory: str) -> Iterator[tuple[str, psutil.Process]]:
    socket = Path(directory) / "scheduler.sock"
    address = f"unix:{socket}"
    command = [sys.executable, "-m", "taco_llm.cli.main", "scheduler", "--listen", address]
    with (Path(directory) / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--no-log-stats", "--max-num-batched-tokens", "8192", *BOUNDS],
            stdout=log,
            stderr=log,
        )
    try:
        while not socket.exists():
            assert process.poll() is None, "the scheduler did not start"
            time.sleep(0.05)
        yield address, psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()


def run(num_replicas: int, num_sequences: int, step_seconds: float, seconds: float) -> dict:
    with (
        tempfile.TemporaryDirectory() as directory,
        scheduler(directory) as (address, process),
    ):
        context = multiprocessing.get_context("spawn")
        replies = Replies(context)
        workers = context.Process(
            target=run_workers,
            args=(address, num_replicas, num_sequences, step_seconds, replies),
            daemon=True,
        )
        workers.start()
        try:
            figures = asyncio.run(
                measure(address, process, num_replicas, num_sequences, seconds, replies)
            )
        finally:
            workers.kill()
            workers.join()
    wanted = num_replicas / step_seconds
    return figures | {"steps_on_time": figures["steps_per_second"] / wanted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16])
    parser.add_argument("--sequences", type=int, default=256, help="of each replica")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    options = parser.parse_args()
    figures: dict[str, dict] = {}
    for num_replicas in options.replicas:
        rounds = [
            run(num_replicas, options.sequences, options.step_ms / 1000, options.seconds)
            for _ in range(options.rounds)
        ]
        row = {key: round(statistics.median(r[key] for r in rounds), 3) for key in rounds[0]}
        figures[f"{num_replicas} replicas"] = row
        print(
            f"{num_replicas:3} replicas: {row['steps_per_second']:7.1f} steps/s "
            f"({row['steps_on_time']:.0%} of those wanted), main thread "
            f"{row['main_thread_share']:.0%} of a core, {row['main_thread_us_per_step']:.0f} µs a "
            f"step; the process {row['process_share']:.0%}; from an output to the next plan "
            f"{row['reply_p50_us']:.0f} µs (p99 {row['reply_p99_us']:.0f})",
            flush=True,
        )
    if options.save:
        about = {
            "sequences": options.sequences,
            "step_ms": options.step_ms,
            "load_average": round(os.getloadavg()[1], 1),  # the machine may have other load
        }
        print(save("scheduler_load", about | figures))


if __name__ == "__main__":
    main()
