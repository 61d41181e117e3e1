"""Architectures whose ops Llama lacks, on Triton's kernels in the interpreter."""

from __future__ import annotations

from pathlib import Path

import torch

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.paged import PagedRunner
from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.backends.torch.plan_weights import load_network
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.triton_ops import TritonOps
from taco_worker.models.config import load_hf_config
from taco_worker.sampling.torch_ops import TorchSampling


def load_on_triton(path: Path) -> TorchModel:
    config, cpu = load_hf_config(path), torch.device("cpu")
    backend = create_attention_backend("triton")
    network = PlanNetwork(config.plan, backend, TritonOps(), dtype=torch.float32, device=cpu)
    load_network(network, path, config)
    sampling = TorchSampling()
    return TorchModel(
        network,
        Transfers(cpu),
        description="triton",
        sampling=sampling,
        kv_dtype=torch.float32,
        graphs=None,
    )


def test_sinks_and_clipped_experts(tmp_path: Path) -> None:
    """gpt-oss: attention sinks, windows, biases of experts, a clipped gate with its own factor."""
    variant = VARIANTS["gpt-oss-like"]
    path = variant.make(tmp_path / "model", swiglu_alpha=1.3)
    first, second = token_sequences((21, 5))
    runner = PagedRunner(load_on_triton(path))
    parts = [runner.step({"a": first[:9], "b": second}), runner.step({"a": first[9:]})]
    expected = variant.reference(path)([first, second])
    actual = torch.cat([part["a"] for part in parts]), parts[0]["b"]
    for logits, one in zip(actual, expected, strict=True):
        torch.testing.assert_close(logits, one, atol=1e-4, rtol=0)
