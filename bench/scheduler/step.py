"""Host work of the scheduler for a decode step and for admissions, in microseconds of CPU time.

Cases: a full batch that decodes, with one gateway and with many; the admission of a cached prompt;
saving prefixes to disk. The worker is simulated: its outputs are made while the clock is stopped.
What remains is all work of the scheduler's only thread for a step, protobuf messages included.
Times are CPU time of the thread, so other load on the machine does not count.
"""

import argparse
import gc
import statistics
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import SchedulerConfig
from taco_proto.convert import (
    step_output_from_pb,
    step_output_to_pb,
    step_plan_to_pb,
    submit_from_pb,
    submit_to_pb,
)
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import ANYBODY, GenerateRequest, Tenant
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_scheduler.core.engine import Engine

NUM_SEQUENCES = 256
PLAIN = f"decode step, {NUM_SEQUENCES} sequences"
PROMPT_TOKENS = 512
CACHED_PROMPT_TOKENS = 4096
LONG_PROMPT_TOKENS = 1_000_000
NUM_COMING_AND_GOING = 64
NUM_OWNERS = 10
NUM_WAITING = 10_000
NUM_CLIENTS = 64
NUM_LOGPROB_CLIENTS = 16
NUM_LOGPROBS = 5
STEPS_IN_TURN = 50
IDLE_SECONDS = 0.02
INFO = WorkerInfo(
    name="none",
    model="none",
    max_model_len=131_072,
    vocab_size=128_256,
    eos_token_ids=(128_001, 128_009),
    block_size=16,
    num_blocks=60_000,
    max_num_seqs=NUM_SEQUENCES,
    max_num_batched_tokens=8192,
    max_logprobs=20,
)
RANDOM = np.random.default_rng(0)


class Clock:
    """Microseconds of each part of a step, one entry per step."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        start = time.thread_time_ns()
        yield
        self.parts[part].append((time.thread_time_ns() - start) / 1000)

    def figures(self) -> dict[str, dict[str, float]]:
        """Returns median and 99th percentile of each part and of their sum."""
        columns = dict(self.parts)
        columns["total"] = [sum(step) for step in zip(*self.parts.values(), strict=True)]
        return {
            name: {
                "median_us": round(statistics.median(times), 1),
                "p99_us": round(float(np.percentile(times, 99)), 1),
            }
            for name, times in columns.items()
        }


def submit_message(
    handle: int,
    num_tokens: int,
    max_tokens: int,
    tenant: Tenant = ANYBODY,
    logprobs: int | None = None,
    priority: int = 0,
) -> bytes:
    tokens = RANDOM.integers(0, 100_000, num_tokens)
    request = GenerateRequest(
        handle=handle,
        request_id=f"request-{handle}",
        token_ids=array("i", tokens.tolist()).tobytes(),
        sampling=SamplingParams(seed=handle, max_tokens=max_tokens, logprobs=logprobs),
        tenant=tenant,
        priority=priority,
    )
    return submit_to_pb(request, 0.0).SerializeToString()


class Bench:
    """An engine with clients, run ahead by one step."""

    def __init__(
        self, max_num_batched_tokens: int, info: WorkerInfo = INFO, num_clients: int = 1
    ) -> None:
        config = SchedulerConfig(
            max_num_seqs=NUM_SEQUENCES,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting_requests=2 * NUM_WAITING,
            max_waiting_tokens=2 * NUM_WAITING * PROMPT_TOKENS,
        )
        self.engine = Engine(config)
        self.replica = self.engine.attach(info)
        self.output_buffers = [self.engine.connect() for _ in range(num_clients)]
        self.worker = FakeExecutor(info, RANDOM.integers(0, 100_000, 10_007).astype(np.int32))
        self.now = 0.0

    def submit(self, message: bytes) -> None:
        """Submits a request; the clients take turns."""
        request = submit_from_pb(pb.Submit.FromString(message), 0.0)
        output_buffer = self.output_buffers[request.handle % len(self.output_buffers)]
        self.engine.submit(output_buffer, request, self.now)

    def answer(self, plan: StepPlan, logprobs: int = 0) -> bytes:
        output = self.worker.execute(plan)
        if logprobs:
            num_rows, width = output.slots.size, logprobs + 1
            columns = LogprobColumns(
                np.full(num_rows, width),
                RANDOM.integers(0, 100_000, num_rows * width),
                RANDOM.random(num_rows * width),
                np.tile(np.arange(width), num_rows),
            )
            output = replace(output, logprobs=columns)
        return step_output_to_pb(output).SerializeToString()

    def step(self, answer: bytes | None, clock: Clock, logprobs: int = 0) -> bytes | None:
        """Plans a step while `answer` is on its way, then processes it; returns the next answer."""
        self.now += 0.01
        with clock.measure("plan"):
            plan = self.engine.plan(self.replica, self.now)
        if plan is None:
            following = None
        else:
            with clock.measure("plan to bytes"):
                step_plan_to_pb(plan).SerializeToString()
            following = self.answer(plan, logprobs)
        if answer is not None:
            with clock.measure("output from bytes"):
                output = step_output_from_pb(pb.StepOutput.FromString(answer))
            with clock.measure("commit"):
                self.replica.steps.commit(output, self.now)
            with clock.measure("outputs to bytes"):
                for output_buffer in self.output_buffers:
                    output_buffer.take().SerializeToString()
        return following


class Decoding:
    """A full batch that decodes.

    Args:
        num_owners: tenants of its requests, in equal shares.
        num_waiting: requests that wait for a slot. Their priority is lower: the policy looks at
            them and never admits one.
        num_waiting_owners: tenants of the waiting requests; by default the same tenants.
        num_clients: gateways that sent the requests, in equal shares.
        logprobs: number of most likely tokens that each request asks for.
    """

    def __init__(
        self,
        num_owners: int = 1,
        num_waiting: int = 0,
        num_waiting_owners: int = 0,
        num_clients: int = 1,
        logprobs: int = 0,
    ) -> None:
        self.clock = Clock()
        self._logprobs = logprobs
        self._bench = bench = Bench(max_num_batched_tokens=8192, num_clients=num_clients)
        for handle in range(NUM_SEQUENCES):
            num_tokens = PROMPT_TOKENS + int(RANDOM.integers(0, 16))
            tenant = Tenant(name=f"owner-{handle % num_owners}")
            bench.submit(submit_message(handle, num_tokens, 100_000, tenant, logprobs or None))
        self._answer: bytes | None = None
        while bench.engine.num_running < NUM_SEQUENCES or bench.now < 1.0:
            self._answer = bench.step(self._answer, Clock(), logprobs)
        for handle in range(NUM_SEQUENCES, NUM_SEQUENCES + num_waiting):
            tenant = Tenant(name=f"owner-{handle % (num_waiting_owners or num_owners)}")
            message = submit_message(handle, PROMPT_TOKENS, 16, tenant, priority=1)
            bench.submit(message)

    def step(self) -> None:
        self._answer = self._bench.step(self._answer, self.clock, self._logprobs)


def decode_steps(num_steps: int) -> dict[str, dict[str, dict[str, float]]]:
    """Times steps of 256 decoding sequences; one in 16 of them needs a block. The cases alternate,
    so that other load on the machine disturbs all of them alike.
    """
    cases = {
        PLAIN: Decoding(),
        f"the same, {NUM_CLIENTS} gateways": Decoding(num_clients=NUM_CLIENTS),
        f"the same, logprobs={NUM_LOGPROBS}": Decoding(logprobs=NUM_LOGPROBS),
        f"the same, logprobs={NUM_LOGPROBS}, {NUM_LOGPROB_CLIENTS} gateways": Decoding(
            num_clients=NUM_LOGPROB_CLIENTS, logprobs=NUM_LOGPROBS
        ),
        f"the same, of {NUM_OWNERS} owners": Decoding(NUM_OWNERS),
        f"the same, {NUM_WAITING:,} more wait": Decoding(NUM_OWNERS, NUM_WAITING),
        f"the same, {NUM_WAITING:,} more of as many owners wait": Decoding(
            NUM_OWNERS, NUM_WAITING, NUM_WAITING
        ),
    }
    gc.collect()
    gc.freeze()  # as the server does after its start
    for _ in range(0, num_steps, STEPS_IN_TURN):
        for case in cases.values():
            for _ in range(STEPS_IN_TURN):
                case.step()
    return {title: case.clock.figures() for title, case in cases.items()}


def steps_after_idle(num_steps: int, idle_seconds: float) -> dict[str, dict[str, float]]:
    """Times the plain decode step after a sleep, as one slow worker leaves the scheduler: what it
    costs more than a step back to back is the price of cold caches.
    """
    decoding = Decoding()
    gc.freeze()
    for _ in range(num_steps):
        time.sleep(idle_seconds)
        decoding.step()
    return decoding.clock.figures()


def rebalancing(num_rounds: int, num_waiting: int) -> dict[str, dict[str, float]]:
    """Times a plan of an idle worker that takes requests from a worker with a long queue."""
    clock = Clock()
    bench = Bench(max_num_batched_tokens=8192)
    for handle in range(NUM_SEQUENCES + num_waiting):
        bench.submit(submit_message(handle, PROMPT_TOKENS, 16, Tenant(name=f"owner-{handle % 10}")))
    for _ in range(num_rounds):
        idle = bench.engine.attach(INFO)
        bench.now += 1.0
        with clock.measure("plan"):
            bench.engine.plan(idle, bench.now)
        bench.engine.on_worker_lost(idle, is_fault=False)
    return clock.figures()


def ratios(figures: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """Returns the cost of each case of `decode_steps` relative to the case that it varies."""
    one, many, logprobs, many_logprobs, owners, waiting, tenants = (
        {name: part["median_us"] for name, part in parts.items()} for parts in figures.values()
    )
    return {
        f"commit, {NUM_CLIENTS} gateways over one": round(many["commit"] / one["commit"], 2),
        f"commit, logprobs={NUM_LOGPROBS}, {NUM_LOGPROB_CLIENTS} gateways over one": round(
            many_logprobs["commit"] / logprobs["commit"], 2
        ),
        f"plan, {NUM_WAITING:,} more wait": round(waiting["plan"] / owners["plan"], 2),
        f"plan, {NUM_WAITING:,} more of as many owners wait": round(
            tenants["plan"] / owners["plan"], 2
        ),
    }


def long_info(num_tokens: int) -> WorkerInfo:
    """Describes a worker that computes a long prompt in one step."""
    return replace(
        INFO,
        max_model_len=2 * num_tokens,
        num_blocks=2 * num_tokens // INFO.block_size,
        max_num_batched_tokens=num_tokens,
    )


def chunks(num_tokens: int) -> dict[str, dict[str, float]]:
    """Times a later chunk of an uncached prompt of `num_tokens` tokens."""
    bench = Bench(max_num_batched_tokens=8192, info=long_info(num_tokens))
    bench.submit(submit_message(0, num_tokens, max_tokens=2))
    answer = bench.step(None, Clock())
    gc.freeze()
    clock = Clock()
    for _ in range(num_tokens // 8192 - 1):
        answer = bench.step(answer, clock)
    return clock.figures()


def cached_admission(
    num_rounds: int, num_tokens: int = CACHED_PROMPT_TOKENS
) -> dict[str, dict[str, float]]:
    """Times from the bytes of a request with a cached prompt to the bytes of its plan."""
    info = INFO if num_tokens == CACHED_PROMPT_TOKENS else long_info(num_tokens)
    info = replace(info, max_num_batched_tokens=num_tokens)  # the cache is filled in one step
    bench = Bench(max_num_batched_tokens=num_tokens, info=info)
    message = submit_message(0, num_tokens, max_tokens=1)
    clock = Clock()
    for i in range(num_rounds + 1):
        if i == 1:
            clock = Clock()  # the first prompt filled the cache
        with clock.measure("submit"):
            bench.submit(message)
        with clock.measure("plan"):
            plan = bench.engine.plan(bench.replica, bench.now)
        assert plan is not None
        with clock.measure("plan to bytes"):
            step_plan_to_pb(plan).SerializeToString()
        assert i == 0 or plan.num_tokens.sum() <= INFO.block_size
        output = step_output_from_pb(pb.StepOutput.FromString(bench.answer(plan)))
        bench.replica.steps.commit(output, bench.now)
        bench.output_buffers[0].take()
    return clock.figures()


def coming_and_going(num_requests: int, info: WorkerInfo) -> dict[str, dict[str, float]]:
    """Times steps of 64 requests of which one or two end and as many arrive. With tiers, the KV of
    ended requests goes to disk, and the disk has finished by the next step.
    """
    bench = Bench(max_num_batched_tokens=8192, info=info)
    engine, replica = bench.engine, bench.replica
    messages = [submit_message(handle, 1024, max_tokens=64) for handle in range(num_requests)]
    clock = Clock()
    outputs: list[StepOutput] = []
    reports: list[StoreReport] = []
    while messages or engine.num_requests or outputs:
        while messages and engine.num_requests < NUM_COMING_AND_GOING:
            bench.submit(messages.pop())
        with clock.measure("reports, commit"):
            for report in reports:
                replica.steps.take_store_report(report)
            for output in outputs:
                replica.steps.commit(output, bench.now)
        with clock.measure("store commands"):
            commands = list(iter(replica.worker.blocks.disk.next_command, None))
        bench.now += 0.01
        with clock.measure("plan"):
            plan = engine.plan(replica, bench.now)
        bench.output_buffers[0].take()
        outputs = [] if plan is None else [bench.worker.execute(plan)]
        reports = [_done(command) for command in commands]
    return clock.figures()


def _done(command: StoreCommand) -> StoreReport:
    written = tuple(block.key for _, block in command.writes)
    return StoreReport(is_complete=not written, written=written)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    decoding = decode_steps(arguments.steps)
    figures = decoding | {
        f"{PLAIN}, each after {IDLE_SECONDS * 1e3:g} ms idle": steps_after_idle(200, IDLE_SECONDS),
        f"admission, {CACHED_PROMPT_TOKENS} cached tokens": cached_admission(arguments.steps // 4),
        "rebalancing, 1,000 wait": rebalancing(10, 1_000),
        f"rebalancing, {NUM_WAITING:,} wait": rebalancing(10, NUM_WAITING),
        f"admission, {LONG_PROMPT_TOKENS:,} cached tokens": cached_admission(
            50, LONG_PROMPT_TOKENS
        ),
        f"later chunk, prompt of {LONG_PROMPT_TOKENS:,} tokens": chunks(LONG_PROMPT_TOKENS),
        "requests come and go": coming_and_going(arguments.steps // 4, INFO),
        "the same, to disk": coming_and_going(
            arguments.steps // 4, replace(INFO, num_host_blocks=60_000, num_disk_blocks=200_000)
        ),
    }
    for title, parts in figures.items():
        print(title)
        for name, part in parts.items():
            print(f"  {name:<20}{part['median_us']:>9.1f} µs median{part['p99_us']:>9.1f} µs p99")
    for title, ratio in ratios(decoding).items():
        print(f"{title:<60}{ratio:>6.2f}x")
    if arguments.save:
        print(save("scheduler_step", figures | {"ratios": ratios(decoding)}))


if __name__ == "__main__":
    main()
