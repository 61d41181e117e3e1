"""Masks are made while the model runs, not after it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from support.checkpoints import make_checkpoint
from support.engine_driver import make_request
from support.local_engine import generate, serve
from support.models import kernels_for
from support.patience import PATIENCE_SECONDS
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_worker.grammars.row_masks import RowMasks
from taco_worker.models.step_model import ModelInput
from taco_worker.worker import Worker

CHOICE = Grammar.of("start: /[a-f]{14}/")


async def test_the_forward_pass_need_not_end_for_the_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each forward pass waits for its step's masks."""
    path = make_checkpoint(tmp_path / "model")
    config = WorkerConfig(model=ModelConfig(model=str(path)), num_blocks=64, max_num_seqs=8)
    worker = Worker(config, lambda count: kernels_for("kernels", count or 1))
    model = worker._runner._model
    num_computed = threading.Semaphore(0)
    forward, compute = model.forward, RowMasks.of
    waits: list[bool] = []

    def counting(*args: Any, **fields: Any) -> RowMasks:
        masks = compute(*args, **fields)
        num_computed.release()
        return masks

    def waiting(inputs: ModelInput) -> Tensor:
        for _ in range(inputs.output_rows.size):
            assert num_computed.acquire(timeout=PATIENCE_SECONDS)
            waits.append(True)
        return forward(inputs)

    monkeypatch.setattr(RowMasks, "of", counting)
    monkeypatch.setattr(model, "forward", waiting)
    requests = [make_request(i, [5, 9, 17 + i], grammar=CHOICE, max_tokens=40) for i in range(3)]
    async with serve(worker) as service:
        got = await generate(service, requests)
    assert not got.errors
    # Steps that began before an answer's end was known have further rows.
    num_tokens = sum(len(tokens) for tokens in got.tokens.values())
    assert len(waits) >= num_tokens >= 3 * 12
