"""A sequence's log probabilities are bit-identical for any neighbours, chunks and threads."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint, plant_outliers
from support.models import kernels_for
from support.plans import GREEDY, Join, make_plan
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.worker import Worker

TYPES = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8, int8 KV": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
    "fp8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    "fp8_e5m2 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e5m2"},
}
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=5, logprobs=3)
PROMPT = random.Random(0).sample(range(3, 380), 70)
OTHER = random.Random(1).sample(range(3, 380), 90)
BLOCKS, OTHER_BLOCKS = list(range(6)), list(range(20, 28))
NUM_TOKENS = 8

pytestmark = pytest.mark.parametrize("kind", TYPES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("model"), num_hidden_layers=3)
    return plant_outliers(path)  # int8 rows with and without outliers


@cache
def worker_of(checkpoint: Path, kind: str, num_threads: int = 2) -> Worker:
    changes = dict(TYPES[kind])
    kv_cache_dtype = changes.pop("kv_cache_dtype", "auto")
    model = replace(ModelConfig(model=str(checkpoint)), **changes)  # type: ignore[arg-type]
    config = WorkerConfig(
        model=model,
        kv_cache_dtype=kv_cache_dtype,
        num_blocks=64,
        max_num_seqs=8,
        num_threads=num_threads,
    )
    return Worker(config, lambda count: kernels_for("kernels", count or 1))


@dataclass
class Generated:
    """The tokens of slot 0 and their log probabilities, with those of the top tokens."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)

    def take(self, output: StepOutput, slot: int = 0) -> None:
        assert output.error == ""
        if slot not in output.slots:
            return
        row = output.slots.tolist().index(slot)
        assert output.logprobs is not None
        self.token_ids.append(int(output.token_ids[row]))
        self.logprobs.append(list(output.logprobs.rows())[row][1])


def run(worker: Worker, plans: list[StepPlan]) -> Generated:
    worker.reset()
    generated = Generated()
    for plan in plans:
        generated.take(worker.execute(plan))
    return generated


def whole(worker: Worker) -> Generated:
    join = Join(0, PROMPT, BLOCKS, sampling=SAMPLED)
    decodes = [make_plan({0: 1}) for _ in range(NUM_TOKENS - 1)]
    return run(worker, [make_plan({0: len(PROMPT)}, joined=[join]), *decodes])


def test_chunks(checkpoint: Path, kind: str) -> None:
    worker = worker_of(checkpoint, kind)
    join = Join(0, PROMPT, BLOCKS, sampling=SAMPLED)
    plans = [
        make_plan({0: 5}, joined=[join]),
        *(make_plan({0: size}) for size in (1, 31, 33)),
        *(make_plan({0: 1}) for _ in range(NUM_TOKENS - 1)),
    ]
    assert run(worker, plans) == whole(worker)


def test_neighbours(checkpoint: Path, kind: str) -> None:
    worker = worker_of(checkpoint, kind)
    other = Join(3, OTHER, OTHER_BLOCKS, sampling=GREEDY)
    plans = [
        make_plan({3: 40}, joined=[other]),
        make_plan({3: 9, 0: 70}, joined=[Join(0, PROMPT, BLOCKS, sampling=SAMPLED)]),
        make_plan({0: 1, 3: 41}),
        *(make_plan({3: 1, 0: 1}) for _ in range(NUM_TOKENS - 2)),
    ]
    assert run(worker, plans) == whole(worker)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_neighbours_for_which_logits_are_kept(
    checkpoint: Path, kind: str, temperature: float
) -> None:
    """A greedy row gets the same log probability with and without kept logits."""
    worker = worker_of(checkpoint, kind)
    greedy = Join(0, PROMPT, BLOCKS, sampling=GREEDY.with_updates(logprobs=0))
    neighbour = SAMPLED.with_updates(temperature=temperature, top_p=1.0)
    decodes = [make_plan({0: 1}) for _ in range(NUM_TOKENS - 1)]
    alone = run(worker, [make_plan({0: 70}, joined=[greedy]), *decodes])
    plans = [
        make_plan(
            {0: 70, 3: 90}, joined=[greedy, Join(3, OTHER, OTHER_BLOCKS, sampling=neighbour)]
        ),
        *(make_plan({0: 1, 3: 1}) for _ in range(NUM_TOKENS - 1)),
    ]
    assert run(worker, plans) == alone


def test_preemption(checkpoint: Path, kind: str) -> None:
    worker = worker_of(checkpoint, kind)
    expected = whole(worker)
    before = run(
        worker,
        [
            make_plan({0: 70}, joined=[Join(0, PROMPT, BLOCKS, sampling=SAMPLED)]),
            make_plan({0: 1}),
            make_plan({0: 1}),
        ],
    )
    known = [*PROMPT, *before.token_ids]
    back = Join(5, known, [40, 9, 33, 21, 50, 2], num_prompt_tokens=len(PROMPT), sampling=SAMPLED)
    for plan in [
        make_plan({5: 50}, left=[0], joined=[back]),
        make_plan({5: len(known) - 50}),
        *(make_plan({5: 1}) for _ in range(NUM_TOKENS - 4)),
    ]:
        before.take(worker.execute(plan), slot=5)
    assert before == expected


def test_threads(checkpoint: Path, kind: str) -> None:
    assert whole(worker_of(checkpoint, kind, 1)) == whole(worker_of(checkpoint, kind, 2))
