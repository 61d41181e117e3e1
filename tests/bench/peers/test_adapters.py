"""The adapters of the comparison are loaded as any, and change what the model computes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from bench.peers import make_adapters
from bench.peers.workloads import ADAPTER_RANK, NUM_ADAPTERS
from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config
from taco_worker.models.lora.factors import read_factors
from taco_worker.models.lora.requested import read_requested


def test_adapters_change_all_linear_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = make_checkpoint(tmp_path / "base", num_hidden_layers=2)
    monkeypatch.setattr(sys, "argv", ["make_adapters", str(base), str(tmp_path / "lora")])
    make_adapters.main()

    plan = load_hf_config(base).plan
    folders = [(str(index), tmp_path / "lora" / str(index)) for index in range(NUM_ADAPTERS)]
    factors = dict(read_factors(read_requested(plan, folders)))

    assert len(factors) == 4 * plan.num_layers  # with fused queries, keys and values; gate and up
    for of_adapters in factors.values():
        assert len(of_adapters) == NUM_ADAPTERS
        for pair in of_adapters:
            assert pair is not None
            assert pair[0].shape[0] % ADAPTER_RANK == 0
            assert (pair[1] @ pair[0]).abs().max() > 0
    first = [pair for pair in next(iter(factors.values())) if pair is not None]
    assert not torch.equal(first[0][0], first[1][0])
