"""KV copies between the GPU and the host tier while the GPU computes."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.plans import Join, ints, make_plan
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.steps import BlockCopies, StepOutput, StepPlan
from taco_worker.worker import Worker

NUM_CACHED = 20
PROMPT = [3 + (7 * i) % 380 for i in range(16 * NUM_CACHED + 5)]
OTHER = [3 + (11 * i) % 380 for i in range(16 * NUM_CACHED + 5)]
HERE = list(range(21))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), num_hidden_layers=8)


def make_worker(path: Path, device: str, **changes: object) -> Worker:
    config = WorkerConfig(
        model=ModelConfig(model=str(path), dtype="float32"),
        device=device,
        num_blocks=64,
        max_num_seqs=4,
        host_kv_bytes=64 * 2**20,
    )
    return Worker(replace(config, **changes), lambda _: None)  # type: ignore[arg-type]


def plans() -> list[StepPlan]:
    """Two prompts alternate in the same device blocks: one is offloaded to the host while the other
    is loaded. No step waits for the one before."""
    sequences = {0: (PROMPT, 0), 1: (OTHER, NUM_CACHED)}
    steps = [make_plan({0: len(PROMPT)}, joined=[Join(0, PROMPT, HERE)])]
    for turn in range(1, 7):
        slot = turn % 2
        tokens, host = sequences[slot]
        away = sequences[1 - slot][1]
        copies = BlockCopies(
            offload_sources=ints(HERE[:NUM_CACHED]),
            offload_targets=ints(range(away, away + NUM_CACHED)),
            load_sources=ints(range(host, host + NUM_CACHED) if turn > 1 else []),
            load_targets=ints(HERE[:NUM_CACHED] if turn > 1 else []),
        )
        cached = 16 * NUM_CACHED if turn > 1 else 0
        plan = make_plan(
            {slot: len(tokens) - cached},
            left=[1 - slot],
            joined=[Join(slot, tokens, HERE, num_computed_tokens=cached)],
        )
        steps += [replace(plan, copies=copies), make_plan({slot: 1}), make_plan({slot: 1})]
    return [replace(plan, step_id=number) for number, plan in enumerate(steps)]


def run_ahead(worker: Worker) -> list[list[int]]:
    outputs: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
    for plan in plans():
        worker.submit(plan, outputs.put)
    worker.drain()
    found = [outputs.get() for _ in plans()]
    assert [output.error for output in found] == [""] * len(found)
    return [output.token_ids.tolist() for output in found]


@pytest.mark.parametrize("lazy_loads", [True, False])
def test_blocks_are_copied_behind_running_steps(checkpoint: Path, lazy_loads: bool) -> None:
    expected = run_ahead(make_worker(checkpoint, "cpu"))
    worker = make_worker(checkpoint, "cuda", lazy_loads=lazy_loads)
    for _ in range(3):  # later rounds replay graphs of single tokens
        worker.reset()
        assert run_ahead(worker) == expected
        while worker.tune():
            pass


def test_a_step_without_rows_waits_for_its_copies(checkpoint: Path) -> None:
    worker = make_worker(checkpoint, "cuda")
    rows, host = worker._model.kv_rows, worker._runner._host_store.rows
    rows.random_(0, 256)
    before = rows.clone().cpu()
    copies = BlockCopies(offload_sources=ints(range(64)), offload_targets=ints(range(64)))
    assert worker.execute(replace(make_plan({}), copies=copies)).error == ""
    assert torch.equal(host[:64], before)
    rows.zero_()
    copies = BlockCopies(load_sources=ints(range(64)), load_targets=ints(range(63, -1, -1)))
    assert worker.execute(replace(make_plan({}, step_id=2), copies=copies)).error == ""
    assert torch.equal(rows.cpu(), before.flip(0))
