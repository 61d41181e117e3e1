"""Logits of the CPU kernels have the same bits for any neighbours, chunks, output rows and threads.

Few architectures are computed, but they have every kind of op with every option among them.
"""

from __future__ import annotations

import json
import pkgutil
import random
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from support.architectures.variant import Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.backends.cpu.lowered_ops import OpKind
from taco_worker.backends.cpu.lowering import lower_plan
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan import ops
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice
from taco_worker.models.registry import supported_architectures

TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8, int8 KV": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
    "fp8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
SEQUENCES = dict(zip("abc", token_sequences((52, 3, 40)), strict=True))
# Options that are set in no variant as it is.
CHANGES: dict[str, dict[str, Any]] = {"OlmoeForCausalLM": {"clip_qkv": 0.5}}
# A trait is an op, an option of an op, or an op after lowering.
Trait = tuple[Any, ...]


def _op_types() -> list[Any]:
    """The classes of ops in the folder `plan/ops`, without those that others extend."""
    for module in pkgutil.iter_modules(ops.__path__):
        import_module(f"{ops.__name__}.{module.name}")

    def derived(kind: Any) -> Iterator[Any]:
        for one in kind.__subclasses__():
            yield one
            yield from derived(one)

    # A dataclass with slots is made twice; the first of both is never used.
    by_name = {one.__name__: one for one in derived(Op)}
    names = sorted(by_name.keys() - {"Input"})  # of heads: test_input_columns.py compares its bits
    return [by_name[name] for name in names if not by_name[name].__subclasses__()]


def _traits(plan: ModelPlan) -> set[Trait]:
    traits: set[Trait] = set()
    for op in chain(plan.ops, plan.logits):
        traits.add((type(op),))
        for field in fields(op):  # type: ignore[arg-type]
            value = getattr(op, field.name)
            if value is None or value is False or isinstance(value, Slice):
                continue
            is_choice = isinstance(value, str) and value not in (*op.parameters, *plan.rope_tables)
            traits.add((type(op), field.name, value) if is_choice else (type(op), field.name))
    matrices = [name for name, one in plan.parameters.items() if len(one.shape) > 1]
    for lowered in lower_plan(plan, dict.fromkeys(matrices, "bf16")).ops:
        traits.add((lowered.kind, lowered.epilogue, lowered.activation, lowered.adds))
    return traits | {(entry.latent, entry.num_heads == 1) for entry in plan.kv_entries}


def _changes(variant: Variant) -> dict[str, Any]:
    return CHANGES.get(variant.architecture, {})


@cache
def _chosen() -> dict[str, set[Trait]]:
    """Traits of variants that have all traits of all variants; first the one with the most."""
    traits: dict[str, set[Trait]] = {}
    supported = supported_architectures()
    for name, variant in VARIANTS.items():
        if variant.architecture in supported:
            with TemporaryDirectory() as folder:
                config = {**variant.config, **_changes(variant)}
                (Path(folder) / "config.json").write_text(json.dumps(config))
                traits[name] = _traits(load_hf_config(Path(folder)).plan)
    chosen: dict[str, set[Trait]] = {}
    missing = set().union(*traits.values())
    while missing:
        name = max(traits, key=lambda one: len(traits[one] & missing))
        chosen[name] = traits[name]
        missing -= traits[name]
    return chosen


def _computed() -> set[Trait]:
    return set().union(*_chosen().values())


@pytest.mark.parametrize("op", _op_types(), ids=lambda op: op.__name__)
def test_every_op_is_computed(op: type[Op]) -> None:
    assert (op,) in _computed()


@pytest.mark.parametrize("kind", sorted({*get_args(OpKind)} - {"cap", "input"}))
def test_every_lowered_op_is_computed(kind: OpKind) -> None:
    """All but those of heads, and caps of a layer's columns: caps of logits are no op."""
    assert kind in {trait[0] for trait in _computed()}


def _runner(path: Path, kind: str, num_threads: int) -> PagedRunner:
    return PagedRunner(load_step_model(path, "kernels", num_threads=num_threads, **TYPES[kind]))


def _in_chunks(runner: PagedRunner, rng: random.Random, *, restricts: bool) -> dict[str, Tensor]:
    """Logits of the sequences, in chunks of random size beside one another.

    With `restricts` few of a step's logits are computed; the others are NaN.
    """
    logits: dict[str, list[Tensor]] = {name: [] for name in SEQUENCES}
    rest = dict(SEQUENCES)
    while rest:
        names = [name for name in rest if rng.random() < 0.8] or list(rest)
        chunks = {name: rest[name][: rng.choice((1, 5, rng.randint(1, 24)))] for name in names}
        sizes = [len(chunk) for chunk in chunks.values()]
        rows = np.arange(sum(sizes), dtype=np.int32)
        if restricts:
            rows = rows[[0, *np.cumsum(sizes)[1:] - 1]]
        computed = runner.logits_at(chunks, rows)
        whole = torch.full((sum(sizes), computed.shape[1]), torch.nan)
        whole[rows] = computed
        for name, part in zip(chunks, whole.split(sizes), strict=True):
            logits[name].append(part)
            rest[name] = rest[name][len(chunks[name]) :]
        rest = {name: ids for name, ids in rest.items() if ids}
    return {name: torch.cat(parts) for name, parts in logits.items()}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", _chosen())
def test_bits_of_logits(name: str, kind: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    path = variant.make(tmp_path / "model", **_changes(variant))
    alone = _runner(path, kind, 1)
    expected = {one: alone.step({one: ids})[one] for one, ids in SEQUENCES.items()}
    runs = [
        _runner(path, kind, 2).step(SEQUENCES),
        _in_chunks(_runner(path, kind, 1), random.Random(1), restricts=False),
        *(_in_chunks(_runner(path, kind, 2), random.Random(i), restricts=True) for i in (2, 3)),
    ]
    for run in runs:
        for one, logits in expected.items():
            computed = ~run[one].isnan().all(1)
            assert computed.any()
            assert torch.equal(run[one][computed], logits[computed])
