"""How many recurrent states fit in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.recurrent_models import RECURRENT
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.devices.transfers import Transfers
from taco_worker.memory import state_sizing
from taco_worker.memory.state_sizing import fit_states
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.step_states import entry_starts, state_row_bytes

CONFIG = WorkerConfig(model=ModelConfig(model="m"), max_num_seqs=8)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    return load_hf_config(make_checkpoint(tmp_path_factory.mktemp("model"), **RECURRENT)).plan


def fitting(
    plan: ModelPlan, available: int, monkeypatch: pytest.MonkeyPatch, config: WorkerConfig = CONFIG
) -> tuple[int, int]:
    """The sequences and snapshots of a machine with `available` bytes."""
    monkeypatch.setattr(state_sizing, "available_cpu_memory", lambda: available)
    fitted, num_snapshots = fit_states(config, plan, Transfers(torch.device("cpu")))
    assert replace(fitted, max_num_seqs=config.max_num_seqs) == config
    return fitted.max_num_seqs, num_snapshots


def test_a_row_holds_all_entries_in_whole_cache_lines(plan: ModelPlan) -> None:
    convolution, heads = 3 * (2 * 2 * 16 + 4 * 24), 4 * 16 * 24
    assert [entry.size for entry in plan.states] == [convolution, heads] * 3
    starts = entry_starts(plan.states)
    assert all(start % 16 == 0 for start in starts)
    assert state_row_bytes(plan.states) == 4 * starts[-1] == 4 * 3 * (convolution + heads)


def test_memory_bounds_sequences_then_snapshots(
    plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 5 * state_row_bytes(plan.states)  # a fifth of the memory is for states
    assert fitting(plan, 100 * row, monkeypatch) == (8, 32)
    assert fitting(plan, 20 * row, monkeypatch) == (8, 12)
    assert fitting(plan, 10 * row, monkeypatch) == (5, 5)
    assert fitting(plan, row, monkeypatch) == (1, 0)
    shared = replace(CONFIG, num_local_workers=2)
    assert fitting(plan, 20 * row, monkeypatch, shared) == (5, 5)


def test_without_a_prefix_cache_there_are_no_snapshots(
    plan: ModelPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = 5 * state_row_bytes(plan.states)
    alone = replace(CONFIG, enable_prefix_caching=False)
    assert fitting(plan, 100 * row, monkeypatch, alone) == (8, 0)
    assert fitting(plan, 5 * row, monkeypatch, alone) == (5, 0)


def test_too_little_memory_is_an_error(plan: ModelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no memory for recurrent states"):
        fitting(plan, 4 * state_row_bytes(plan.states), monkeypatch)


def test_other_models_keep_their_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load_hf_config(make_checkpoint(tmp_path)).plan
    assert plan.states == ()
    assert fitting(plan, 0, monkeypatch) == (8, 0)
