"""Ops after the last write of KV, which run for the output rows alone if these are few."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from support.models import load_step_model
from support.paged import GivenTokens, PagedRunner
from support.plans import ints
from taco_kernels.kv_entry import KVEntry
from taco_worker.backends.cpu.cpu_model import CpuModel
from taco_worker.models import registry
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, PlanBuilder, rms
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.rope import Rope
from taco_worker.models.rope import RotaryConfig
from taco_worker.models.step_model import StepModel

NAME = "OneKVEntryForTests"
HIDDEN, INNER, VOCAB, LENGTH = 64, 48, 96, 64
CHUNKS = {"a": [(7 * i) % VOCAB for i in range(33)], "b": [5, 8, 13]}
NUM_TOKENS = sum(map(len, CHUNKS.values()))
OUTPUT_ROWS = [4, 32, 35]
RUNS = [4, 5, 6, 31, 32, 33, 34]  # rows 31 to 34 are of both sequences
MOST_ROWS = [row for row in range(NUM_TOKENS) if row not in (1, 33)]


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    """All layers read the KV of the first; token ids and positions are read again at the end."""
    b = PlanBuilder(vocab_size=VOCAB, hidden_size=HIDDEN)
    b.embed("embed")
    b.rope_table("rope", RotaryConfig(100.0, sections=(8, 12, 12)), HIDDEN)
    entry = 0
    for layer in range(3):
        with b.layer():
            h = b.norm(b.stream, "norm", "norm{layer}", rms(1e-6))
            both = b.buffer("both", 2 * INNER)
            b.linear(h, "gate", [Module("gate{layer}", INNER)], out=both.columns(0, INNER))
            if layer == 0:
                key = b.linear(h, "key", [Module("key", HIDDEN)], out=b.buffer("key", HIDDEN))
                b.add(Rope(key, HIDDEN, HIDDEN, "rope"))
                entry = b.write_kv(KVEntry(1, HIDDEN, HIDDEN), key, h)
            query = b.buffer("query", HIDDEN)
            b.linear(h, "query", [Module("query{layer}", HIDDEN)], out=query)
            b.add(Rope(query, HIDDEN, HIDDEN, "rope"))
            b.add(Attend(query, b.buffer("y", HIDDEN), entry, 1, 0.125))
            b.residual(b.buffer("y", HIDDEN))
            # The gate was computed for all tokens, in the other columns of this buffer.
            b.linear(h, "up", [Module("up{layer}", INNER)], out=both.columns(INNER, INNER))
            b.add(Activation(both, b.buffer("inner", INNER), "silu", gated=True))
            b.residual(b.linear(b.buffer("inner", INNER), "down", [Module("down{layer}", HIDDEN)]))
            if layer == 2:
                b.add(Embed(b.buffer("again", HIDDEN), "embed_tokens.weight", VOCAB))
                b.residual(b.buffer("again", HIDDEN))
                b.embed_positions("positions", LENGTH)
    b.final_norm("last", rms(1e-6))
    b.head("head")
    return b.build(architecture, LENGTH, TensorNames())


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [NAME]}))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        source.name: torch.randn(parameter.shape, generator=generator) / 8
        for parameter in plan(ConfigFields({}), NAME).parameters.values()
        for source in parameter.layouts[0]
    }
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(registry.ModelRegistry, "_registered", {})
    registry.ModelRegistry.register_model(NAME, plan)
    return tmp_path


def given_tokens(dtype: torch.dtype) -> dict[str, GivenTokens]:
    """Positions on three axes that differ, and embeddings of some tokens."""
    generator = torch.Generator().manual_seed(1)
    whole = GivenTokens(
        torch.randint(LENGTH, (3, NUM_TOKENS), generator=generator),
        torch.randn(NUM_TOKENS, HIDDEN, generator=generator).to(dtype),
        torch.arange(NUM_TOKENS) % 4 == 0,
    )
    ends = len(CHUNKS["a"]), NUM_TOKENS
    return {"a": whole.part(0, ends[0]), "b": whole.part(*ends)}


def logits(model: StepModel, rows: list[int]) -> Tensor:
    return PagedRunner(model).logits_at(CHUNKS, ints(rows), given_tokens(model.hidden_dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_some_outputs_are_those_of_all_rows(checkpoint: Path, dtype: str) -> None:
    model = load_step_model(checkpoint, "kernels", dtype=dtype)
    whole = logits(model, list(range(NUM_TOKENS)))
    assert torch.equal(logits(model, OUTPUT_ROWS), whole[OUTPUT_ROWS])
    assert torch.equal(logits(model, RUNS), whole[RUNS])
    assert torch.equal(logits(model, MOST_ROWS), whole[MOST_ROWS])
    wanted = logits(load_step_model(checkpoint, "torch", dtype=dtype), OUTPUT_ROWS)
    tolerance = 1e-5 if dtype == "float32" else 0.05
    assert (whole[OUTPUT_ROWS] - wanted).abs().max() < tolerance * wanted.abs().max()


@pytest.mark.parametrize("layers", [(0,), (1, 0)])
def test_outputs_of_later_layers_are_kept_for_all_tokens(
    checkpoint: Path, layers: tuple[int, ...]
) -> None:
    kept = []
    for serves in ("kernels", "torch"):
        model = load_step_model(checkpoint, serves)
        runner = PagedRunner(model)
        model.keep_hidden(layers)
        runner.logits_at(CHUNKS, ints(OUTPUT_ROWS), given_tokens(model.hidden_dtype))
        assert model.kept_hidden.shape == (NUM_TOKENS, len(layers) * HIDDEN)
        kept.append(model.kept_hidden)
    torch.testing.assert_close(*kept, rtol=1e-4, atol=1e-4)


def test_block_tables_are_not_copied_for_a_decode_step(checkpoint: Path) -> None:
    """A long sequence makes the tables of all wide."""
    model = load_step_model(checkpoint, "kernels")
    assert isinstance(model, CpuModel)
    model.allocate_kv(64, 16, LENGTH)
    runner = model._ready()
    ones = np.ones(32, dtype=np.int32)
    sizes = []
    for width in (1, 4096):
        runner.forward(
            *(ones, 0 * ones, np.arange(33, dtype=np.int32), ones),
            *(np.zeros((32, width), dtype=np.int32), np.arange(32, dtype=np.int32)),
        )
        sizes.append(runner._scratch._num_bytes)
    assert sizes[0] == sizes[1]
