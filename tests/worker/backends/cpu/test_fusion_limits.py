"""Ops that look like a pair to fuse: the CPU kernels compute what torch computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from support.models import load_step_model
from support.paged import PagedRunner
from taco_kernels.kv_entry import KVEntry
from taco_worker.models import registry
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.external_recipes import Recipe
from taco_worker.models.plan.builder import Module, PlanBuilder, rms
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.slices import Slice

HIDDEN, INNER, VOCAB = 64, 48, 96
Block = Callable[[PlanBuilder, Slice], None]


def gate_and_up_apart(b: PlanBuilder, h: Slice) -> None:
    """Two products write the halves of one buffer, which a gated activation reads."""
    both = b.buffer("both", 2 * INNER)
    for index, name in enumerate(("gate", "up")):
        half = both.columns(index * INNER, INNER)
        b.linear(h, name, [Module(name, INNER)], out=half)
    inner = b.buffer("inner", INNER)
    b.add(Activation(both, inner, "silu", gated=True))
    b.residual(b.linear(inner, "down", [Module("down", HIDDEN)], out=b.buffer("y", HIDDEN)))


def sum_of_the_stream_itself(b: PlanBuilder, h: Slice) -> None:
    """A product reads the stream and is added to it."""
    b.residual(b.linear(b.stream, "square", [Module("square", HIDDEN)], out=b.buffer("y", HIDDEN)))


def activation_over_its_input(b: PlanBuilder, h: Slice) -> None:
    """The activation writes to columns that the product before it reads."""
    up = b.linear(h, "up", [Module("up", HIDDEN)], out=b.buffer("up", HIDDEN))
    b.add(Activation(up, h, "relu", gated=False))
    b.residual(h)


def recipe_of(block: Block) -> Recipe:
    def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
        b = PlanBuilder(vocab_size=VOCAB, hidden_size=HIDDEN)
        b.embed("embed")
        with b.layer():
            h = b.norm(b.stream, "norm", "norm", rms(1e-6))
            entry = KVEntry(1, HIDDEN, HIDDEN)
            b.add(Attend(h, b.buffer("y", HIDDEN), b.write_kv(entry, h, h), 1, 0.125))
            b.residual(b.buffer("y", HIDDEN))
            h = b.norm(b.stream, "norm2", "norm2", rms(1e-6))
            block(b, h)
        b.final_norm("last", rms(1e-6))
        b.head("head", tied=False)
        return b.build(architecture, 64, TensorNames())

    return plan


@pytest.fixture(params=[gate_and_up_apart, sum_of_the_stream_itself, activation_over_its_input])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    name = f"{request.param.__name__}ForTests"
    recipe = recipe_of(request.param)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        source.name: torch.randn(parameter.shape, generator=generator) / 8
        for parameter in recipe(ConfigFields({}), name).parameters.values()
        for source in parameter.layouts[0]
    }
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(registry.ModelRegistry, "_registered", {})
    registry.ModelRegistry.register_model(name, recipe)
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_compute_what_torch_computes(checkpoint: Path, dtype: str) -> None:
    token_ids = [(7 * i) % VOCAB for i in range(33)]
    of_kernels, of_torch = (
        PagedRunner(load_step_model(checkpoint, back_end, dtype=dtype)).step({"a": token_ids})["a"]
        for back_end in ("kernels", "torch")
    )
    tolerance = 1e-5 if dtype == "float32" else 0.05
    assert (of_kernels - of_torch).abs().max() < tolerance * of_torch.abs().max()
