"""Prompt tokens computed when requests with a common prefix arrive together.

Counts tokens, not seconds, so the figures are the same on every machine. `shared_tokens` is the
minimum over all orders of the requests: every prefix is computed once, on one replica.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.record import save
from bench.scheduler.fake_executor import FakeExecutor
from taco_proto.config import SchedulerConfig
from taco_proto.requests import GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import WorkerInfo
from taco_scheduler.core.engine import Engine

TEMPLATE_TOKENS = 16  # one block
OWN_TOKENS = 32
INFO = WorkerInfo(
    name="none",
    model="none",
    max_model_len=131_072,
    vocab_size=128_256,
    eos_token_ids=(128_001,),
    block_size=16,
    num_blocks=60_000,
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_logprobs=20,
)


class Load:
    """Random token ids in the shape of prompts."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._template = self.tokens(TEMPLATE_TOKENS)

    def tokens(self, count: int) -> bytes:
        return self._random.integers(0, 100_000, count).astype("<i4").tobytes()

    def prompts(
        self, num_groups: int, group_tokens: int, group_size: int, *, has_template: bool = True
    ) -> Iterator[bytes]:
        """Makes prompts for the groups in turn: template, group prefix, own tokens."""
        start = self._template if has_template else b""
        groups = [self.tokens(group_tokens) for _ in range(num_groups)]
        for _ in range(group_size):
            yield from (start + group + self.tokens(OWN_TOKENS) for group in groups)


class Cluster:
    """One engine with simulated workers."""

    def __init__(self, num_replicas: int) -> None:
        self.engine = Engine(SchedulerConfig(max_num_batched_tokens=8192))
        tokens = np.arange(1000, dtype=np.int32)
        infos = [replace(INFO, name=f"replica-{i}") for i in range(num_replicas)]
        self.workers = [(self.engine.attach(info), FakeExecutor(info, tokens)) for info in infos]
        self.client = self.engine.connect()
        self.num_computed_tokens = 0
        self._num_requests = 0

    def submit(self, prompt: bytes) -> None:
        self._num_requests += 1
        request = GenerateRequest(
            handle=self._num_requests,
            request_id=f"request-{self._num_requests}",
            token_ids=prompt,
            sampling=SamplingParams(seed=1, max_tokens=1),
        )
        self.engine.submit(self.client, request, 0.0)

    def run(self) -> None:
        while self.engine.num_requests:
            for replica, worker in self.workers:
                plan = self.engine.plan(replica, 0.0)
                if plan is not None:
                    self.num_computed_tokens += int(plan.num_tokens.sum())
                    replica.steps.commit(worker.execute(plan), 0.0)
            self.client.take()


def measure(
    num_replicas: int,
    num_groups: int,
    group_tokens: int,
    group_size: int,
    *,
    has_template: bool = True,
) -> dict[str, int]:
    """Counts the tokens computed for requests that arrive at once, with the template's block
    cached.
    """
    load, cluster = Load(), Cluster(num_replicas)
    if has_template:
        for _ in cluster.workers:
            cluster.submit(next(load.prompts(1, 0, 1)))
        cluster.run()
    cluster.num_computed_tokens = 0
    for prompt in load.prompts(num_groups, group_tokens, group_size, has_template=has_template):
        cluster.submit(prompt)
    cluster.run()
    own_tokens = num_groups * group_size * OWN_TOKENS
    return {
        "computed_tokens": cluster.num_computed_tokens,
        "shared_tokens": num_groups * group_tokens + own_tokens,
        "unshared_tokens": num_groups * group_size * group_tokens + own_tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--save", action="store_true", help="write bench/results/prefix_sharing.json"
    )
    arguments = parser.parse_args()
    figures = {
        "16 requests, 1,008 common tokens behind a cached block": measure(1, 1, 1008, 16),
        "8 groups of 8 requests": measure(1, 8, 1024, 8),
        "8 groups of 8 requests, 2 replicas": measure(2, 8, 1024, 8),
        "the same without a common first block": measure(2, 8, 1024, 8, has_template=False),
    }
    for title, row in figures.items():
        print(f"{title}: {row['computed_tokens']:,} tokens computed", end="")
        print(f" (shared {row['shared_tokens']:,}, unshared {row['unshared_tokens']:,})")
    if arguments.save:
        print(save("prefix_sharing", figures))


if __name__ == "__main__":
    main()
