"""Architectures whose ops Llama lacks, on Triton's kernels in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.architectures.qwen2_vl import reference_of_inputs
from support.architectures.variant import Variant, token_sequences
from support.architectures.variants import VARIANTS
from support.paged import GivenTokens, PagedRunner
from taco_kernels.kv_format import KVFormat
from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends.torch.cuda_graphs import CudaGraphs
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.backends.torch.plan_weights import load_network
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.triton_ops import TritonOps
from taco_worker.models.config import load_hf_config
from taco_worker.sampling.torch_ops import TorchSampling


def load_on_triton(path: Path, graphs: CudaGraphs | None = None) -> TorchModel:
    config, cpu = load_hf_config(path), torch.device("cpu")
    backend = create_attention_backend("triton")
    network = PlanNetwork(config.plan, backend, TritonOps(), dtype=torch.float32, device=cpu)
    load_network(network, config)
    sampling = TorchSampling()
    return TorchModel(
        network,
        Transfers(cpu),
        description="triton",
        sampling=sampling,
        kv_format=KVFormat(torch.float32),
        graphs=graphs,
    )


def test_sinks_and_clipped_experts(tmp_path: Path) -> None:
    """gpt-oss: attention sinks, windows, biases of experts, a clipped gate with its own factor."""
    variant = VARIANTS["gpt-oss-like"]
    _assert_follows(variant, variant.make(tmp_path / "model", swiglu_alpha=1.3))


def test_heads_that_are_normed_after_their_rotation(tmp_path: Path) -> None:
    """HunYuan: one kernel cannot rotate keys and write them."""
    variant = VARIANTS["hunyuan-7b-like"]
    _assert_follows(variant, variant.make(tmp_path / "model"))


def test_experts_that_probabilities_with_a_bias_choose(tmp_path: Path) -> None:
    """ERNIE 4.5."""
    variant = VARIANTS["ernie-4.5-moe-like"]
    _assert_follows(variant, variant.make(tmp_path / "model"))


@pytest.mark.parametrize("name", ["qwen3.5-like", "kimi-linear-like", "bamba-like", "lfm2-like"])
def test_recurrences(tmp_path: Path, name: str) -> None:
    _assert_follows(VARIANTS[name], VARIANTS[name].make(tmp_path / "model"))


def _assert_follows(variant: Variant, path: Path) -> None:
    """Compare two sequences, one of them in two chunks, with the oracle."""
    first, second = token_sequences((21, 5))
    runner = PagedRunner(load_on_triton(path))
    parts = [runner.step({"a": first[:9], "b": second}), runner.step({"a": first[9:]})]
    expected = variant.reference(path)([first, second])
    actual = torch.cat([part["a"] for part in parts]), parts[0]["b"]
    for logits, one in zip(actual, expected, strict=True):
        torch.testing.assert_close(logits, one, atol=1e-4, rtol=0)


def test_an_image_and_replayed_tokens_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2-VL: embeddings, positions on three axes, and a graph that reads such positions."""
    path = VARIANTS["qwen2-vl-like"].make(tmp_path / "model")
    graphs = CudaGraphs(Transfers(torch.device("cpu")), max_num_seqs=1, capture=lambda run: run)
    model = load_on_triton(path, graphs)
    (ids,) = token_sequences((12,))
    is_patch = torch.tensor([False] * 3 + [True] * 6 + [False] * 3)
    # Three words, two rows of three patches, and words behind the greatest position.
    positions = torch.tensor(
        [
            [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8],
            [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8],
            [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8],
        ]
    )
    patches = torch.randn(12, 72, generator=torch.Generator().manual_seed(0))
    embeddings = torch.where(is_patch[:, None], patches, model.embed(torch.tensor(ids)))
    given = GivenTokens(positions, embeddings, is_patch)
    runner = PagedRunner(model)
    while model.tune(between_steps=False):
        pass
    parts = []
    for begin, end in ((0, 5), (5, 9), (9, 10), (10, 11), (11, 12)):
        if end - begin == 1:
            monkeypatch.setattr(model, "_run_eagerly", None)
        parts.append(runner.step({"a": ids[begin:end]}, {"a": given.part(begin, end)})["a"])
    expected = reference_of_inputs(path)(embeddings, positions)
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=0)
