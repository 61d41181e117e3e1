"""Routing between several schedulers: by records of their cached prefixes, without, and
round-robin.

Two gateways and two schedulers with one worker each serve requests with shared prefixes; each
client sends its next request after its answer. The schedulers and the gateways' placement are real.
Workers compute nothing, Redis is a record that is at most a second old, and time is simulated, so
the figures are the same on every machine. The round-robin policy exists only in this script.
"""

import argparse
import heapq
import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from bench.scheduler.replicas import BLOCK_SIZE, TOKENS, VOCABULARY, Workload, seconds_of
from taco_gateway.engine.scheduler_choice import SchedulerView, choose_scheduler
from taco_proto.config import SchedulerConfig
from taco_proto.output_batch import output_rows
from taco_proto.registry import DECODE_TOKENS, KEY_BYTES, WRITE_SECONDS, SchedulerRecord
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan, WorkerInfo
from taco_scheduler.core.engine import Engine
from taco_scheduler.server.hot_prefixes import HotPrefixes

KEY = bytes(KEY_BYTES)
NUM_GATEWAYS = 2
NUM_SCHEDULERS = 2
MODEL = ModelInfo(
    model="none",
    max_model_len=8192,
    vocab_size=VOCABULARY,
    eos_token_ids=(),
    block_size=BLOCK_SIZE,
    num_blocks=0,
    max_logprobs=0,
)


class Scheduler:
    """One engine with one worker.

    Attributes:
        free_at: simulated time at which its worker has finished all planned steps.
    """

    def __init__(self, number: int, num_blocks: int) -> None:
        info = WorkerInfo(
            name=f"worker-{number}",
            model="none",
            max_model_len=8192,
            vocab_size=VOCABULARY,
            eos_token_ids=(),
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            max_logprobs=0,
        )
        self.address = f"scheduler-{number}"
        self.engine = Engine(SchedulerConfig(log_stats=False))
        self.output_buffer = self.engine.connect()
        self.replica = self.engine.attach(info)
        self.worker = FakeExecutor(info, TOKENS)
        self.free_at = 0.0
        self._prefixes = HotPrefixes(KEY)

    def record(self) -> SchedulerRecord:
        for _ in self._prefixes.collect([self.replica.worker.blocks]):
            pass
        return SchedulerRecord(
            address=self.address,
            model="none",
            block_size=BLOCK_SIZE,
            num_workers=1,
            load=self.replica.load,
            hash_key=KEY,
            prefixes=self._prefixes.found,
        )


@dataclass
class Target:
    """One gateway's view of a scheduler.

    Attributes:
        open: work that each of the gateway's own requests adds there.
    """

    scheduler: Scheduler
    view: SchedulerView = field(default_factory=lambda: SchedulerView(KEY))
    info: ModelInfo | None = MODEL
    open: dict[int, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.scheduler.address

    @property
    def own_load(self) -> int:
        return sum(self.open.values())


Choose = Callable[[GenerateRequest, Sequence[Target], float], tuple[Target, int]]


def round_robin() -> Choose:
    turns = itertools.count()
    return lambda request, targets, now: (targets[next(turns) % len(targets)], 0)


class Simulation:
    def __init__(
        self, workload: Workload, seed: int, choices: Sequence[Choose], *, has_records: bool
    ) -> None:
        self._load = workload
        self._random = np.random.default_rng(seed)
        self._prefixes = self._random.integers(
            0, VOCABULARY, (workload.num_groups, workload.prefix_tokens), dtype=np.int32
        )
        self._schedulers = [Scheduler(i, workload.num_blocks) for i in range(NUM_SCHEDULERS)]
        self._choices = choices
        self._gateways = [[Target(s) for s in self._schedulers] for _ in choices]
        self._has_records = has_records
        self._written_at = float("-inf")
        self._events: list[tuple[float, int, Scheduler, StepPlan]] = []
        self._numbers = itertools.count()
        self._target_of: list[Target] = []
        self._sent_at: list[float] = []
        self._first_tokens: dict[int, float] = {}
        self._now = 0.0

    def run(self) -> dict[str, float]:
        for _ in range(self._load.num_clients):
            self._submit()
        num_done = 0
        while num_done < self._load.num_requests:
            self._plan()
            self._now, _, scheduler, plan = heapq.heappop(self._events)
            scheduler.replica.steps.commit(scheduler.worker.execute(plan), self._now)
            batch = scheduler.output_buffer.take()
            for handle, _, _, reason, *_ in output_rows(batch):
                target = self._target_of[handle]
                if handle not in self._first_tokens:
                    self._first_tokens[handle] = self._now - self._sent_at[handle]
                    target.open[handle] = DECODE_TOKENS
                if reason:
                    num_done += 1
                    del target.open[handle]
                    self._submit()
        counters = [scheduler.engine.counters for scheduler in self._schedulers]
        hits = sum(counter.prefix_cache_hits for counter in counters)
        queries = sum(counter.prefix_cache_queries for counter in counters)
        waits = list(self._first_tokens.values())
        return {
            "tokens_per_second": num_done * self._load.answer_tokens / self._now,
            "hit_rate": hits / queries,
            "ttft_p50_ms": 1e3 * float(np.median(waits)),
            "ttft_p99_ms": 1e3 * float(np.percentile(waits, 99)),
        }

    def _plan(self) -> None:
        for scheduler in self._schedulers:
            while (plan := scheduler.engine.plan(scheduler.replica, self._now)) is not None:
                scheduler.free_at = max(self._now, scheduler.free_at) + seconds_of(plan)
                event = (scheduler.free_at, next(self._numbers), scheduler, plan)
                heapq.heappush(self._events, event)

    def _submit(self) -> None:
        self._write_records()
        handle = len(self._sent_at)
        which = handle % len(self._gateways)
        group = int(self._random.integers(0, self._load.num_groups))
        if self._random.random() < self._load.hot_share:
            group = 0
        tail = self._random.integers(0, VOCABULARY, self._load.tail_tokens, dtype=np.int32)
        tokens = np.concatenate([self._prefixes[group], tail])
        request = GenerateRequest(
            handle=handle,
            request_id=str(handle),
            token_ids=array("i", tokens.tolist()).tobytes(),
            sampling=SamplingParams(seed=0, max_tokens=self._load.answer_tokens),
        )
        target, num_missing = self._choices[which](request, self._gateways[which], self._now)
        target.open[handle] = num_missing + DECODE_TOKENS
        self._target_of.append(target)
        self._sent_at.append(self._now)
        target.scheduler.engine.submit(target.scheduler.output_buffer, request, self._now)

    def _write_records(self) -> None:
        if not self._has_records or self._now < self._written_at + WRITE_SECONDS:
            return
        self._written_at = self._now
        for index, scheduler in enumerate(self._schedulers):
            record = scheduler.record()
            for targets in self._gateways:
                targets[index].view.update(record, self._now)


def measure(workload: Workload, policy: str, num_runs: int) -> dict[str, float]:
    runs = []
    for seed in range(num_runs):
        if policy == "round-robin":
            choices = [round_robin() for _ in range(NUM_GATEWAYS)]
        else:
            choices = [choose_scheduler] * NUM_GATEWAYS
        has_records = policy == "by records"
        runs.append(Simulation(workload, seed, choices, has_records=has_records).run())
    return {key: round(float(np.median([run[key] for run in runs])), 3) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()
    mixes = {
        "even": Workload(num_requests=arguments.requests),
        "a hot prefix": Workload(num_requests=arguments.requests, hot_share=0.5),
    }
    figures: dict[str, dict] = {}
    for name, workload in mixes.items():
        print(name)
        figures[name] = {}
        for policy in ("round-robin", "by records", "without records"):
            row = figures[name][policy] = measure(workload, policy, arguments.runs)
            shown = "  ".join(f"{key} {value:g}" for key, value in row.items())
            print(f"  {policy:<16}{shown}", flush=True)
    if arguments.save:
        print(save("schedulers", figures))


if __name__ == "__main__":
    main()
