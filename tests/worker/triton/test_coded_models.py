"""Models whose matrices are codes: on Triton's kernels in the interpreter, and on torch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from support.paged import PagedRunner
from taco_kernels.packed_codes import PackedCodes
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.attention.backend import create_attention_backend
from taco_worker.backends.model_loading import load_step_model
from taco_worker.backends.torch import torch_loading
from taco_worker.backends.torch.coded_parameters import coded_parameters, parameter_bytes
from taco_worker.backends.torch.torch_loading import TorchBackend
from taco_worker.backends.torch.torch_model import TorchModel
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.triton_ops import TritonOps
from taco_worker.models.config import load_hf_config
from taco_worker.quant.int8_rows import int8_rows
from taco_worker.sampling.torch_ops import TorchSampling

PROMPT, OTHER = [5, 17, 300, 42, 9, 77, 130, 6, 250, 31, 8], [250, 3, 3, 99]
GIB = 2**30


def load(path: Path, quantization: str = "int8", **options: Any) -> TorchModel:
    model = ModelConfig(model=str(path), dtype="float32", quantization=quantization)
    config = WorkerConfig(model=model, **options)
    loaded = load_step_model(config, None, Transfers(torch.device("cpu")))[1]
    assert isinstance(loaded, TorchModel)
    return loaded


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are loaded as on a GPU."""

    def choose(*_: object) -> TorchBackend:
        backend = create_attention_backend("triton")
        return TorchBackend(backend, TritonOps(), TorchSampling(), None, "triton")

    monkeypatch.setattr(torch_loading, "choose_torch_backend", choose)


def logits_of(model: TorchModel) -> list[Tensor]:
    runner = PagedRunner(model)
    steps = [
        runner.step({"a": PROMPT[:7], "b": OTHER}),
        runner.step({"a": PROMPT[7:]}),
        runner.step({"a": [12], "b": [9]}),
    ]
    return [logits for step in steps for logits in step.values()]


def rounded(path: Path, target: Path) -> TorchModel:
    """The model on numbers, each matrix but the embeddings with the values of its int8 codes."""
    shutil.copytree(path, target)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "embed" not in name:
            tensors[name] = int8_rows(tensor).values()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    model = ModelConfig(model=str(target), dtype="float32")
    loaded = load_step_model(WorkerConfig(model=model), None, Transfers(torch.device("cpu")))[1]
    assert isinstance(loaded, TorchModel)
    return loaded


@pytest.mark.parametrize("device", ["torch", "triton"])
def test_int8_at_load(tmp_path: Path, device: str, request: pytest.FixtureRequest) -> None:
    """As the same model on the values of the codes; matrices take a byte a number."""
    path = make_checkpoint(tmp_path / "model")
    wanted = rounded(path, tmp_path / "rounded")
    if device == "triton":
        request.getfixturevalue("on_triton")

    model = load(path)

    for actual, expected in zip(logits_of(model), logits_of(wanted), strict=True):
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)
    embeddings = model.network.by_name[model.plan.embedding_table]
    matrices = wanted.weight_bytes - embeddings.nbytes
    assert model.weight_bytes - embeddings.nbytes < 0.4 * matrices
    assert model.network.coded.keys() == {
        name
        for name, parameter in model.plan.parameters.items()
        if len(parameter.shape) == 2 and name != model.plan.embedding_table
    }


def assert_codes_are_numbers(model: TorchModel) -> None:
    """Its logits are those of the same model with the values of its codes."""
    on_codes = logits_of(model)
    assert model.network.coded
    for coded in model.network.coded.values():
        assert any(isinstance(part.rows, PackedCodes) for part in coded.parts)
        coded.dequantize()
    for actual, expected in zip(on_codes, logits_of(model), strict=True):
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("quantization", ["fp8", "bitsandbytes"])
def test_other_kinds_at_load(tmp_path: Path, on_triton: None, quantization: str) -> None:
    """8-bit floats without the LM head, and tables of 16 numbers with a scale for 64 columns."""
    path = make_checkpoint(tmp_path / "model", hidden_size=128)
    assert_codes_are_numbers(load(path, quantization))


@pytest.mark.parametrize("quantization", ["int8", "experts_int8"])
def test_experts_at_load(tmp_path: Path, on_triton: None, quantization: str) -> None:
    path = VARIANTS["mixtral-8x7b-like"].make(tmp_path / "model")
    model = load(path, quantization)
    assert any(len(coded.shape) == 3 for coded in model.network.coded.values())
    assert_codes_are_numbers(model)


def test_offloaded_layers_compute_the_same(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, num_hidden_layers=3)
    plain = load(path)
    layer_bytes = sum(parameter.nbytes for parameter in plain.network.layers[0].parameters())
    offloaded = load(path, cpu_offload_gb=2.9 * layer_bytes / GIB)
    storages = {p.untyped_storage().data_ptr() for p in offloaded.network.layers[-1].parameters()}
    assert len(storages) == 1  # of the buffer that the layer is copied into
    for actual, expected in zip(logits_of(offloaded), logits_of(plain), strict=True):
        assert torch.equal(actual, expected)


def test_sizes_bound_the_memory_of_weights(tmp_path: Path) -> None:
    """What is checked against the device's free memory before anything is loaded."""
    path = VARIANTS["mixtral-8x7b-like"].make(tmp_path / "model")
    model = load(path)
    config = load_hf_config(path)
    coded = coded_parameters(config, "int8")
    for name, weight in model.network.coded.items():
        size = parameter_bytes(config.plan, name, coded[name], torch.float32.itemsize)
        kept = sum(parameter.nbytes for parameter in weight.parameters())
        assert kept <= size <= 2 * kept + 1024  # small rows are mostly padding
