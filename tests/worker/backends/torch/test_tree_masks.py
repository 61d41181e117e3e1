"""Draft trees on the torch decoder: every node matches decoding its path alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support import triton_interpreter
from support.checkpoints import make_checkpoint
from support.draft_trees import Tree, TreeRunner, chain, trees
from support.models import load_step_model
from taco_proto.config import WorkerConfig
from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends.torch import torch_loading
from taco_worker.backends.torch.cuda_graphs import CudaGraphs, GraphShape
from taco_worker.backends.torch.torch_loading import TorchBackend
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.torch_ops import TorchOps
from taco_worker.models.step_model import StepModel
from taco_worker.sampling.torch_ops import TorchSampling

triton_interpreter.install()

ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {"architecture": "LlamaForCausalLM"},
    "windowed": {"architecture": "MistralForCausalLM", "sliding_window": 11},
}
TOKENS = random.Random(0).choices(range(384), k=200)
CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    return make_checkpoint(path, num_hidden_layers=2, **ARCHITECTURES[request.param])  # type: ignore[arg-type]


def replay(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return run


@cache
def load(checkpoint: Path, backend: str) -> StepModel:
    """Load the model on a back end. "replayed": Triton with fixed inputs, as in CUDA graphs;
    "alone": a second torch model for the expected values."""

    def choose_torch_backend(
        _: WorkerConfig, transfers: Transfers, dtype: torch.dtype
    ) -> TorchBackend:
        attention = create_attention_backend("torch" if backend in ("torch", "alone") else "triton")
        graphs = None
        if backend == "replayed":
            graphs = CudaGraphs(transfers, max_num_seqs=4, capture=replay)
        return TorchBackend(attention, TorchOps(), TorchSampling(), graphs, backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_loading, "choose_torch_backend", choose_torch_backend)
        return load_step_model(checkpoint, "torch")


@pytest.mark.parametrize("backend", ["torch", "triton"])
@settings(max_examples=4)
@given(tree=trees(max_tokens=9), context_len=st.integers(0, 40), data=st.data())
def test_every_node_matches_decoding_its_path(
    checkpoint: Path, backend: str, tree: Tree, context_len: int, data: st.DataObject
) -> None:
    runner = TreeRunner(load(checkpoint, backend))
    alone = TreeRunner(load(checkpoint, "alone"))
    context = TOKENS[:context_len]
    if context:
        runner.step({"a": chain(context)})
    node = data.draw(st.sampled_from(range(len(tree.token_ids))))
    rows = {"prompt": chain(TOKENS[:5]), "a": tree, "one": chain([7])}
    hidden = runner.step_and_keep(rows, {"prompt": 4, "a": node, "one": 0})

    torch.testing.assert_close(hidden["prompt"], alone.path_hidden(TOKENS[:5]), **CLOSE)
    torch.testing.assert_close(hidden["one"], alone.path_hidden([7]), **CLOSE)
    for each in range(len(tree.token_ids)):
        expected = alone.path_hidden([*context, *tree.ids_to(each)])[-1]
        torch.testing.assert_close(hidden["a"][each], expected, **CLOSE)
    later = runner.step({"a": chain(TOKENS[60:62])})
    expected = alone.path_hidden([*context, *tree.ids_to(node), *TOKENS[60:62]])
    torch.testing.assert_close(later, expected[-2:], **CLOSE)


def test_replayed_trees_match_eager_ones(checkpoint: Path) -> None:
    model = load(checkpoint, "replayed")
    assert isinstance(model, TorchModel)
    runner, alone = TreeRunner(model), TreeRunner(load(checkpoint, "alone"))
    text = TOKENS[:20]
    runner.step({"a": chain(text)})
    for turn in range(4):
        tree = Tree(TOKENS[30 + turn : 36 + turn], [-1, 0, 1, 0, 3, 3])
        hidden = runner.step_and_keep({"a": tree}, {"a": 4})["a"]
        for node in (2, 4, 5):
            expected = alone.path_hidden([*text, *tree.ids_to(node)])[-1]
            torch.testing.assert_close(hidden[node], expected, **CLOSE)
        text = [*text, *tree.ids_to(4)]
        model.tune(between_steps=True)
    assert model._graphs is not None
    assert GraphShape(9, 1, has_trees=True) in model._graphs._graphs  # 6 nodes, padded to 9


def test_trees_are_masked_up_to_64_tokens(checkpoint: Path) -> None:
    for backend in ("torch", "triton"):
        runner = TreeRunner(load(checkpoint, backend), num_blocks=16)
        alone = TreeRunner(load(checkpoint, "alone"))
        tree = Tree(TOKENS[:64], [*range(-1, 62), 0])
        hidden = runner.step({"a": tree})
        torch.testing.assert_close(hidden[:63], alone.path_hidden(TOKENS[:63]), **CLOSE)
        expected = alone.path_hidden([TOKENS[0], TOKENS[63]])
        torch.testing.assert_close(hidden[63], expected[1], **CLOSE)
        with pytest.raises(ValueError, match="has 65 tokens in a step, and 64 is the maximum"):
            runner.step({"b": Tree(TOKENS[:65], [*range(-1, 63), 0])})
