"""Draft trees on the CPU kernels: every node is bit-identical to plain decoding."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.checkpoints import make_checkpoint
from support.cpu_kernels import EMULATED, NATIVE
from support.draft_trees import Tree, TreeRunner, chain, trees
from support.models import load_step_model
from taco_worker.models.step_model import StepModel

ARCHITECTURES: dict[str, dict[str, object]] = {
    "padded": {
        "architecture": "LlamaForCausalLM",
        "hidden_size": 72,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
    },
    "windowed": {"architecture": "MistralForCausalLM", "sliding_window": 11},
}
TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8, int8 KV": {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
    "fp8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
}
TOKENS = random.Random(0).choices(range(384), k=200)


@pytest.fixture(scope="module", params=[*NATIVE, *EMULATED])
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(path, num_hidden_layers=2, **ARCHITECTURES[request.param])  # type: ignore[arg-type]


@cache
def load(checkpoint: Path, isa: str, kind: str) -> StepModel:
    return load_step_model(checkpoint, isa, **TYPES[kind])


def poison(model: StepModel) -> None:
    """Fill all blocks with NaN before they are written."""
    model._runner.cache.memory.fill_(0xFF)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=6)
@given(
    tree=trees(),
    other=trees(),
    context_len=st.integers(0, 50),
    block_size=st.sampled_from([16, 32]),
    data=st.data(),
)
def test_every_node_is_bit_identical_to_decoding_its_path(
    checkpoint: Path,
    isa: str,
    kind: str,
    tree: Tree,
    other: Tree,
    context_len: int,
    block_size: int,
    data: st.DataObject,
) -> None:
    model = load(checkpoint, isa, kind)
    runner = TreeRunner(model, block_size=block_size)
    poison(model)
    context, other_context = TOKENS[:context_len], TOKENS[100:117]
    if context:
        runner.step({"a": chain(context)})
    runner.step({"b": chain(other_context)})
    accepted = {
        "prompt": 19,
        "a": data.draw(st.sampled_from(range(len(tree.token_ids)))),
        "one": 0,
        "b": data.draw(st.sampled_from(range(len(other.token_ids)))),
    }
    rows = {"prompt": chain(TOKENS[:20]), "a": tree, "one": chain([7]), "b": other}
    hidden = runner.step_and_keep(rows, accepted)

    for name, before in (("a", context), ("b", other_context)):
        row = rows[name]
        for node in range(len(row.token_ids)):
            alone = runner.path_hidden([*before, *row.ids_to(node)])
            assert torch.equal(hidden[name][node], alone[-1])
    assert torch.equal(hidden["prompt"], runner.path_hidden(TOKENS[:20]))
    assert torch.equal(hidden["one"], runner.path_hidden([7]))

    # Accepted tokens equal plainly decoded ones, over a block's end and alone.
    text = [*context, *tree.ids_to(accepted["a"]), *TOKENS[60:79]]
    later = [runner.step({"a": chain([token])}) for token in TOKENS[60:79]]
    assert torch.equal(torch.cat(later), runner.path_hidden(text)[-19:])
    text = [*other_context, *other.ids_to(accepted["b"]), 5, 6]
    assert torch.equal(runner.step({"b": chain([5, 6])}), runner.path_hidden(text)[-2:])


@pytest.mark.parametrize("kind", TYPES)
def test_consecutive_trees_with_skipped_output_rows(checkpoint: Path, isa: str, kind: str) -> None:
    """The last layer computes the needed rows only."""
    model = load(checkpoint, isa, kind)
    runner = TreeRunner(model)
    text = TOKENS[:13]
    runner.step({"a": chain(text)})
    for turn in range(3):
        ids = TOKENS[20 + turn : 29 + turn]
        tree = Tree(ids, [-1, 0, 1, 2, 0, 4, 5, 4, 0])
        runner.step_and_keep({"a": tree}, {"a": 6})
        text += tree.ids_to(6)
    tree = Tree(TOKENS[50:56], [-1, 0, 1, 0, 3, 3])
    wanted = runner.step({"a": tree}, np.array([2, 5], dtype=np.int32))
    for row, node in zip(wanted, (2, 5), strict=True):
        assert torch.equal(row, runner.path_hidden([*text, *tree.ids_to(node)])[-1])


@pytest.mark.parametrize("kind", TYPES)
def test_an_accepted_path_may_enter_a_new_block(checkpoint: Path, isa: str, kind: str) -> None:
    """Stale content of the block's other tokens must not matter."""
    model = load(checkpoint, isa, kind)
    runner = TreeRunner(model)
    poison(model)
    runner.step({"a": chain(TOKENS[:13])})
    tree = Tree(TOKENS[20:26], [-1, 0, 0, 2, 3, 4])
    runner.step_and_keep({"a": tree}, {"a": 5})
    expected = runner.path_hidden([*TOKENS[:13], *tree.ids_to(5), 7])[-1]
    assert torch.equal(runner.step({"a": chain([7])})[-1], expected)
