"""Time to first token of one tenant while another floods the scheduler, in simulated time.

The scheduler is real. Its worker computes nothing, and a step takes 20 ms of simulated time, so the
figures show only queues, slots and preemptions, and are the same on every machine. Two owners of
equal weight send requests at random times. One sends half of its share. The other sends its share,
or 20 times that. Both arms of a pair have the same arrivals of the first owner.
`bench.services.fairness` measures the same over HTTP.
"""

import argparse
import random
from array import array
from collections import deque
from collections.abc import Iterator

import numpy as np

from bench.interval import ratio_interval
from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from taco_proto.config import SchedulerConfig
from taco_proto.requests import GenerateRequest, Tenant
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan, WorkerInfo
from taco_scheduler.core.engine import Engine

STEP_SECONDS = 0.02
NUM_SLOTS = 16
PROMPT_TOKENS = 130
ANSWER_TOKENS = 64
FLOOD = 20.0
WARM_UP_SECONDS = 20.0
STEADY, OTHER = "steady", "other"
# Answers per second when all slots are always in use.
CAPACITY = NUM_SLOTS / (ANSWER_TOKENS * STEP_SECONDS)
INFO = WorkerInfo(
    name="none",
    model="none",
    max_model_len=4096,
    vocab_size=1_000_000,
    eos_token_ids=(),
    block_size=16,
    num_blocks=10_000,
    max_num_seqs=NUM_SLOTS,
    max_num_batched_tokens=2048,
    max_logprobs=0,
)


def arrivals(owner: str, rate: float, seconds: float, seed: str) -> Iterator[tuple[float, str]]:
    """Yields arrival times of a Poisson process."""
    rng = random.Random(f"{owner} {seed}")
    at = 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        yield at, owner


class Simulation:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._engine = Engine(SchedulerConfig(max_waiting_requests=64, log_stats=False))
        self._output_buffer = self._engine.connect()
        self._replica = self._engine.attach(INFO)
        self._worker = FakeExecutor(INFO, np.arange(1, 997, dtype=np.int32))
        self._in_flight: deque[tuple[float, StepPlan]] = deque()
        self._sent: list[tuple[float, str]] = []
        self._first: dict[int, float] = {}
        self._now = self._free_at = 0.0

    def run(self, requests: list[tuple[float, str]]) -> list[float]:
        """Returns the seconds to first token of each answer to the steady owner, without the
        warm-up.
        """
        waiting = deque(sorted(requests))
        while waiting or self._in_flight:
            done_at = self._in_flight[0][0] if self._in_flight else float("inf")
            if waiting and waiting[0][0] <= done_at:
                self._submit(*waiting.popleft())
            else:
                self._now, plan = self._in_flight.popleft()
                self._replica.steps.commit(self._worker.execute(plan), self._now)
            for handle in self._output_buffer.take().handles:
                self._first.setdefault(handle, self._now)
            while (following := self._engine.plan(self._replica, self._now)) is not None:
                self._free_at = max(self._now, self._free_at) + STEP_SECONDS
                self._in_flight.append((self._free_at, following))
        return [
            self._first[handle] - at
            for handle, (at, owner) in enumerate(self._sent)
            if owner == STEADY and at > WARM_UP_SECONDS
        ]

    def _submit(self, at: float, owner: str) -> None:
        self._now = at
        handle = len(self._sent)
        self._sent.append((at, owner))
        tokens = self._rng.integers(0, INFO.vocab_size, PROMPT_TOKENS, dtype=np.int32)
        request = GenerateRequest(
            handle=handle,
            request_id=str(handle),
            token_ids=array("i", tokens.tolist()).tobytes(),
            sampling=SamplingParams(seed=0, max_tokens=ANSWER_TOKENS),
            tenant=Tenant(name=owner),
        )
        self._engine.submit(self._output_buffer, request, at)


def p99(seed: int, factor: float, seconds: float) -> float:
    share = CAPACITY / 2
    steady = arrivals(STEADY, share / 2, seconds, str(seed))
    other = arrivals(OTHER, factor * share, seconds, f"{seed} {factor}")
    return float(np.percentile(Simulation(seed).run([*steady, *other]), 99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=400.0, help="simulated, in each arm")
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    within = [p99(seed, 1.0, args.seconds) for seed in range(args.pairs)]
    flooded = [p99(seed, FLOOD, args.seconds) for seed in range(args.pairs)]
    ratio = ratio_interval(flooded, within)
    figures = {
        "p99_ratio": [round(x, 3) for x in (ratio.ratio, ratio.low, ratio.high)],
        "p99_ms": {
            "the other asks for its share": round(1e3 * float(np.median(within)), 1),
            f"the other asks for {FLOOD:g} times its share": round(
                1e3 * float(np.median(flooded)), 1
            ),
        },
    }
    print(figures)
    if args.save:
        print(save("fairness_simulated", figures))


if __name__ == "__main__":
    main()
