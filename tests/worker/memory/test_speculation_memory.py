"""The memory of speculative decoding is measured before a GPU's KV cache is sized."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.eagle_reference import CONFIGS, NUM_TARGET_LAYERS, eagle_shapes, vocabulary_maps
from support.heads import append, join, observe, random_tensors, write_heads
from support.models import load_step_model
from support.plans import ints
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.steps import IntArray
from taco_worker.devices.transfers import Transfers
from taco_worker.memory import kv_sizing
from taco_worker.memory.gpu_memory import GRAPH_BYTES, GpuMemory, measure_gpu_memory
from taco_worker.memory.profiling_steps import largest_verification
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.sampling.typical_acceptance import TypicalAcceptance
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.heads.head_factory import make_heads
from taco_worker.speculation.heads.slot_blocks import DrafterWithKV

MAX_NUM_SEQS, MAX_MODEL_LEN, NUM_DRAFTS = 3, 64, 5
CPU = Transfers(torch.device("cpu"))


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    return make_checkpoint(path, num_hidden_layers=NUM_TARGET_LAYERS)


@pytest.fixture
def target(target_path: Path) -> StepModel:
    return load_step_model(target_path, "torch")


@pytest.fixture(params=CONFIGS)
def drafter(request: pytest.FixtureRequest, target: StepModel, tmp_path: Path) -> Drafter:
    tensors = random_tensors(eagle_shapes(request.param))
    if request.param == "eagle3":
        tensors |= vocabulary_maps()
    path = write_heads(tmp_path, CONFIGS[request.param], tensors, "model.safetensors")
    return make_heads(
        str(path),
        target,
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        num_draft_tokens=NUM_DRAFTS,
    )


def worker_config(path: Path, **changes: object) -> WorkerConfig:
    config = WorkerConfig(
        model=ModelConfig(model=str(path), max_model_len=MAX_MODEL_LEN),
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=40,
        speculation=SpeculationConfig(num_speculative_tokens=NUM_DRAFTS),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


class Meter:
    """A fake GPU allocator: counts the logits and the hidden states."""

    def __init__(self, model: StepModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak = 0
        self.steps: list[ModelInput] = []
        forward, compute_logits = model.forward, model.compute_logits

        def counted_forward(inputs: ModelInput) -> Tensor:
            self.steps.append(inputs)
            return self.count(forward(inputs))

        monkeypatch.setattr(model, "forward", counted_forward)
        monkeypatch.setattr(
            model, "compute_logits", lambda *args: self.count(compute_logits(*args))
        )
        for name, answer in {
            "synchronize": lambda *_: None,
            "empty_cache": lambda: None,
            "memory_allocated": lambda *_: 0,
            "memory_reserved": lambda *_: 0,
            "mem_get_info": lambda *_: (2**30, 2**30),
            "reset_peak_memory_stats": lambda *_: setattr(self, "peak", 0),
            "max_memory_allocated": lambda *_: self.peak,
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def count(self, tensor: Tensor) -> Tensor:
        self.peak = max(self.peak, tensor.nbytes)
        return tensor


def measure(config: WorkerConfig, model: StepModel, drafter: Drafter | None) -> GpuMemory:
    return measure_gpu_memory(
        model,
        CPU,
        kv_sizing.make_profiling_steps(config, model, CPU, drafter, MAX_MODEL_LEN),
        utilization=0.9,
        block_size=16,
        captures_graphs=True,
        conservative=False,
    )


def test_the_largest_verification_is_measured(
    target: StepModel, target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(target, monkeypatch)
    logit_bytes = 4 * target.plan.vocab_size
    plain = measure(worker_config(target_path, speculation=None), target, None)
    assert (plain.activations, plain.graphs) == (MAX_NUM_SEQS * logit_bytes, GRAPH_BYTES)
    with_drafts = measure(worker_config(target_path), target, None)
    num_rows = MAX_NUM_SEQS * (1 + NUM_DRAFTS)
    assert with_drafts.activations == num_rows * logit_bytes
    assert with_drafts.graphs == GRAPH_BYTES + num_rows * 4 * target.plan.hidden_size
    # A step never exceeds max_num_batched_tokens.
    measure(worker_config(target_path, max_num_batched_tokens=7), target, None)
    assert meter.steps[-1].positions.size == meter.steps[-1].output_rows.size == 7


def test_typical_acceptance_is_profiled_on_all_rows(
    target: StepModel, target_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Meter(target, monkeypatch)
    rows: list[int] = []
    prefer = TypicalAcceptance.prefer

    def noted_prefer(self: TypicalAcceptance, logits: Tensor, *others: Any) -> Tensor:
        rows.append(logits.shape[0])
        return prefer(self, logits, *others)

    monkeypatch.setattr(TypicalAcceptance, "prefer", noted_prefer)
    speculation = SpeculationConfig(
        num_speculative_tokens=NUM_DRAFTS, acceptance_method="typical_acceptance_sampler"
    )
    measure(worker_config(target_path, speculation=speculation), target, None)
    assert rows == [MAX_NUM_SEQS * (1 + NUM_DRAFTS)]


def test_heads_draft_while_profiling_and_end_empty(
    target: StepModel, target_path: Path, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted: list[list[int]] = []
    draft = drafter.draft

    def noted_draft(slots: IntArray, max_nodes: IntArray) -> Any:
        trees = draft(slots, max_nodes)
        drafted.append(trees.num_nodes.tolist())
        return trees

    monkeypatch.setattr(drafter, "draft", noted_draft)
    meter = Meter(target, monkeypatch)
    assert isinstance(drafter, DrafterWithKV)
    beside = drafter.fixed_kv_bytes
    memory = measure(worker_config(target_path), target, drafter)
    assert memory.activations == meter.peak + beside > beside > 0
    assert drafted == [[NUM_DRAFTS] * MAX_NUM_SEQS] * 2
    monkeypatch.undo()
    tokens = [5, 6, 7]
    join(drafter, {1: tokens})
    hidden = torch.zeros(3, target.plan.hidden_size * max(1, len(drafter.hidden_layers or ())))
    observe(drafter, {1: (0, [*tokens[1:], 9], hidden)})
    append(drafter, {1: [9]})
    assert drafter.draft(ints([1]), ints([2])).num_nodes.tolist() == [2]


def test_a_block_includes_the_heads_kv(
    target: StepModel, target_path: Path, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(drafter, DrafterWithKV)
    # One layer with as many heads as each of the target's seven.
    own = target.kv_block_bytes(16)
    assert 16 * drafter.kv_bytes_per_token * NUM_TARGET_LAYERS == own
    monkeypatch.setattr(kv_sizing, "available_cpu_memory", lambda: 2 * 8 * own)
    config = worker_config(target_path, speculation=None)
    assert kv_sizing.size_kv_cache(config, target, CPU) == (MAX_MODEL_LEN, 8)
    assert kv_sizing.size_kv_cache(config, target, CPU, drafter) == (MAX_MODEL_LEN, 7)


@pytest.mark.parametrize("has_branches", [False, True])
def test_a_verification_samples_behind_every_token(has_branches: bool) -> None:
    step = largest_verification(
        CPU,
        max_num_seqs=3,
        num_tokens=100,
        max_model_len=50,
        num_drafts=4,
        has_branches=has_branches,
    )
    assert step.seq_lens.tolist() == [5, 5, 5]
    assert step.output_rows.tolist() == list(range(15))
    assert (step.parents is not None) is has_branches
    wanted = [0, 1, 1, 1, 1] if has_branches else [0, 1, 2, 3, 4]
    assert step.positions.tolist() == 3 * wanted
    if step.parents is not None:
        assert step.parents.tolist() == [-1, 0, 0, 0, 0, -1, 5, 5, 5, 5, -1, 10, 10, 10, 10]
