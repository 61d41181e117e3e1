"""Prefix-aware routing beside round-robin, in simulated time.

Two workers serve requests with shared prefixes; each client sends its next request after its
answer. The scheduler is real. The workers compute nothing, and a step takes the simulated cost of
its rows, so the figures show routing only and are the same on every machine. The round-robin policy
exists only in this script.
"""

import argparse
import heapq
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from taco_proto.config import SchedulerConfig
from taco_proto.output_batch import output_rows
from taco_proto.registry import DECODE_TOKENS
from taco_proto.requests import GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan, WorkerInfo
from taco_scheduler.core import rebalancing, router
from taco_scheduler.core import replica as replica_module
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.replica import Replica
from taco_scheduler.state.sequence import Request

VOCABULARY = 32_000
TOKENS = np.arange(1, 997, dtype=np.int32)
BLOCK_SIZE = 16
# Cost of a step: about that of a model with 0.5 billion weights on 16 cores.
STEP_SECONDS, PROMPT_SECONDS, DECODE_SECONDS = 10e-3, 0.2e-3, 0.3e-3

Choose = Callable[[Request, Sequence[Replica]], Replica | None]


@dataclass(frozen=True)
class Workload:
    num_workers: int = 2
    num_groups: int = 32
    prefix_tokens: int = 1024
    tail_tokens: int = 64
    answer_tokens: int = 64
    num_clients: int = 32
    num_requests: int = 1500
    hot_share: float = 0.0  # share of the requests in the first group

    @property
    def num_blocks(self) -> int:
        """Blocks of each worker: enough for all running sequences and a little over half of the
        prefixes.
        """
        running = self.num_clients * (self.tail_tokens + self.answer_tokens + 2 * BLOCK_SIZE)
        cached = self.num_groups * self.prefix_tokens * 0.6
        return int((running + cached) / BLOCK_SIZE)


def round_robin() -> Choose:
    turns = itertools.count()
    return lambda request, replicas: replicas[next(turns) % len(replicas)]


@contextmanager
def policy(choose: Choose, decode_tokens: int, *, corrects: bool) -> Iterator[None]:
    before = router.choose, rebalancing.find_movable
    weight = DECODE_TOKENS
    router.choose = choose  # type: ignore[assignment]
    set_weight(decode_tokens)
    if not corrects:
        rebalancing.find_movable = lambda idle, busy: []
    try:
        yield
    finally:
        router.choose, rebalancing.find_movable = before
        set_weight(weight)


def set_weight(decode_tokens: int) -> None:
    for module in (replica_module, rebalancing):
        vars(module)["DECODE_TOKENS"] = decode_tokens


def seconds_of(plan: StepPlan) -> float:
    num_decodes = int((plan.num_tokens == 1).sum())
    num_prompt = int(plan.num_tokens.sum()) - num_decodes
    return STEP_SECONDS + num_prompt * PROMPT_SECONDS + num_decodes * DECODE_SECONDS


class Simulation:
    def __init__(self, workload: Workload, seed: int) -> None:
        self._load = workload
        self._random = np.random.default_rng(seed)
        self._prefixes = self._random.integers(
            0, VOCABULARY, (workload.num_groups, workload.prefix_tokens), dtype=np.int32
        )
        self._engine = Engine(SchedulerConfig(log_stats=False))
        self._output_buffer = self._engine.connect()
        self._workers: dict[Replica, FakeExecutor] = {}
        for number in range(workload.num_workers):
            info = self._info(number)
            self._workers[self._engine.attach(info)] = FakeExecutor(info, TOKENS)
        self._events: list[tuple[float, int, Replica, StepPlan]] = []
        self._free_at = dict.fromkeys(self._workers, 0.0)
        self._numbers = itertools.count()
        self._first_tokens: dict[int, float] = {}
        self._sent_at: dict[int, float] = {}
        self._now = 0.0

    def _info(self, number: int) -> WorkerInfo:
        return WorkerInfo(
            name=f"worker-{number}",
            model="none",
            max_model_len=8192,
            vocab_size=VOCABULARY,
            eos_token_ids=(),
            block_size=BLOCK_SIZE,
            num_blocks=self._load.num_blocks,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            max_logprobs=0,
        )

    def run(self) -> dict[str, float]:
        for _ in range(self._load.num_clients):
            self._submit()
        num_done = 0
        while num_done < self._load.num_requests:
            self._plan()
            self._now, _, replica, plan = heapq.heappop(self._events)
            output = self._workers[replica].execute(plan)
            replica.steps.commit(output, self._now)
            batch = self._output_buffer.take()
            for handle, _, _, reason, *_ in output_rows(batch):
                self._first_tokens.setdefault(handle, self._now - self._sent_at[handle])
                if reason:
                    num_done += 1
                    self._submit()
        counters = self._engine.counters
        return {
            "tokens_per_second": round(num_done * self._load.answer_tokens / self._now, 1),
            "hit_rate": round(counters.prefix_cache_hits / counters.prefix_cache_queries, 3),
            "ttft_p50_ms": round(1e3 * float(np.median(list(self._first_tokens.values()))), 1),
            "ttft_p99_ms": round(
                1e3 * float(np.percentile(list(self._first_tokens.values()), 99)), 1
            ),
        }

    def _plan(self) -> None:
        for replica in self._workers:
            while (plan := self._engine.plan(replica, self._now)) is not None:
                start = max(self._now, self._free_at[replica])
                self._free_at[replica] = start + seconds_of(plan)
                event = (self._free_at[replica], next(self._numbers), replica, plan)
                heapq.heappush(self._events, event)

    def _submit(self) -> None:
        handle = len(self._sent_at)
        group = int(self._random.integers(0, self._load.num_groups))
        if self._random.random() < self._load.hot_share:
            group = 0
        tail = self._random.integers(0, VOCABULARY, self._load.tail_tokens, dtype=np.int32)
        tokens = np.concatenate([self._prefixes[group], tail])
        sampling = SamplingParams(seed=0, max_tokens=self._load.answer_tokens)
        request = GenerateRequest(
            handle=handle,
            request_id=str(handle),
            token_ids=array("i", tokens.tolist()).tobytes(),
            sampling=sampling,
        )
        self._sent_at[handle] = self._now
        self._engine.submit(self._output_buffer, request, self._now)


def measure(workload: Workload, choose: Choose, decode_tokens: int, **options: bool) -> dict:
    runs = []
    for seed in range(3):
        with policy(choose, decode_tokens, **options):
            runs.append(Simulation(workload, seed).run())
    return {key: round(float(np.median([run[key] for run in runs])), 3) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--decode-weights", type=int, nargs="*", default=[])
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    arguments = parser.parse_args()
    mixes = {
        "even": Workload(num_requests=arguments.requests),
        "a hot prefix": Workload(num_requests=arguments.requests, hot_share=0.5),
        "short prompts": Workload(
            num_requests=arguments.requests // 2, prefix_tokens=64, answer_tokens=128
        ),
    }
    weight = DECODE_TOKENS
    figures: dict[str, dict] = {}
    for name, workload in mixes.items():
        rows = {"round-robin": measure(workload, round_robin(), weight, corrects=False)}
        for value in [weight, *arguments.decode_weights]:
            label = "cache-aware" if value == weight else f"cache-aware, weight {value}"
            rows[label] = measure(workload, router.choose, value, corrects=True)
        figures[name] = rows
        print(name)
        for label, row in rows.items():
            print(f"  {label:<26}" + "  ".join(f"{key} {value:g}" for key, value in row.items()))
    if arguments.save:
        print(save("replicas", figures))


if __name__ == "__main__":
    main()
