"""Checks of a model before any process starts, without torch."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker import startup_checks
from taco_worker.models.registry import supported_architectures
from taco_worker.startup_checks import (
    check_activations,
    check_memory,
    check_model,
    matrix_bytes,
    num_parameters,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def rewrite_config(checkpoint: Path, **changes: Any) -> None:
    file = checkpoint / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def refusal(checkpoint: Path, **wanted: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        check_model(ModelConfig(model=str(checkpoint), **wanted))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM"])
def test_supported_models_pass(tmp_path: Path, architecture: str) -> None:
    path = make_checkpoint(tmp_path, architecture)
    model = check_model(ModelConfig(model=str(path), max_model_len=512))
    assert model.architecture == architecture
    stored = safetensors.torch.load_file(path / "model.safetensors")
    matrices = sum(tensor.numel() for tensor in stored.values() if tensor.ndim == 2)
    embeddings_of_positions = 0 if architecture == "LlamaForCausalLM" else 514 * 64
    assert 0 <= matrices - num_parameters(model.plan) <= embeddings_of_positions


def test_max_model_len_beyond_the_model(checkpoint: Path) -> None:
    assert "100000 is more than the 512" in refusal(checkpoint, max_model_len=100_000)


def test_an_unknown_architecture(checkpoint: Path) -> None:
    rewrite_config(checkpoint, architectures=["DiffLlamaForCausalLM"])
    message = refusal(checkpoint)
    assert "architecture DiffLlamaForCausalLM is not supported; similar names: " in message
    assert message.endswith(f"docs/models.md lists all {len(supported_architectures())} that are")
    assert len(message) < 250


def test_a_missing_field(checkpoint: Path) -> None:
    rewrite_config(checkpoint, hidden_size=None)
    assert "config.json has no 'hidden_size'" in refusal(checkpoint)


def test_bad_json(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")
    assert "is not valid JSON" in refusal(checkpoint)


def test_a_quantized_checkpoint(checkpoint: Path) -> None:
    rewrite_config(checkpoint, quantization_config={"quant_method": "none-such"})
    line = "config.json: the checkpoint is quantized (none-such), which is not supported"
    assert f"{checkpoint}/{line}" in refusal(checkpoint)


def test_int8_experts_need_experts(checkpoint: Path, tmp_path: Path) -> None:
    message = refusal(checkpoint, quantization="experts_int8")
    assert "'experts_int8' changes nothing: it needs a model with experts" in message
    mixture = VARIANTS["mixtral-8x7b-like"].make(tmp_path / "mixture")
    assert check_model(ModelConfig(model=str(mixture), quantization="experts_int8")).has_codes


def test_missing_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert "no weights in" in refusal(checkpoint)
    check_model(ModelConfig(model=str(checkpoint), load_format="dummy"))
    check_model(ModelConfig(model=str(checkpoint)), has_weights=False)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_cut_off_weights(checkpoint: Path, kept: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors" in refusal(checkpoint)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"x": 5}',
        b'{"x": {"shape": [1]}}',
        b"{",
        b"[" * 10_000,
        b"\xff",
        b'{"x": {"data_offsets": [0, 0]}, "x": {"data_offsets": [0, 0]}}',
    ],
)
def test_a_damaged_header(checkpoint: Path, header: bytes) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert "cannot read" in refusal(checkpoint)


def test_tensors_of_another_model(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.other.weight"] = tensors.pop("model.norm.weight")
    safetensors.torch.save_file(tensors, file)
    message = refusal(checkpoint)
    assert "missing tensors: model.norm.weight" in message
    assert "unexpected tensors: model.other.weight" in message


@pytest.mark.parametrize("named", ["model.safetensors", "model-2.safetensors"])
def test_an_index_names_files(checkpoint: Path, named: str) -> None:
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": named}}))
    if (checkpoint / named).exists():
        check_model(ModelConfig(model=str(checkpoint)))
    else:
        assert f"names files that are missing: {named}" in refusal(checkpoint)


def test_an_empty_bin_file(checkpoint: Path) -> None:
    (checkpoint / "pytorch_model.bin").touch()
    assert "are empty: pytorch_model.bin" in refusal(checkpoint, load_format="pt")


def _activations(checkpoint: Path, device: str = "cpu", **wanted: Any) -> None:
    model = ModelConfig(model=str(checkpoint), **wanted)
    check_activations(WorkerConfig(model=model, device=device), check_model(model))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "needs quantized weights, and the model has none"),
        ({"quantization": "fp8", "dtype": "float32"}, "with float32 the weights are dequantized"),
        ({"quantization": "fp8", "dtype": "half"}, "with float32 the weights are dequantized"),
        ({"quantization": "fp8", "dtype": "bfloat16"}, "do not multiply int8 activations: int8 n"),
        ({"quantization": "bitsandbytes", "dtype": "bfloat16"}, "do not multiply int8 activations"),
        ({"quantization": "fp8", "dtype": "float32", "load_format": "dummy"}, None),
        ({"quantization": "int8"}, None),
        ({"quantization": "tpu_int8", "quantized_activations": "bfloat16"}, "leave out quantized_"),
        ({"quantized_activations": "bfloat16"}, None),
        ({"device": "cuda"}, None),
    ],
)
def test_quantized_activations(
    checkpoint: Path, wanted: dict[str, Any], message: str | None
) -> None:
    settings = {"quantized_activations": "int8", **wanted}
    if message is None:
        _activations(checkpoint, **settings)
        return
    with pytest.raises(ConfigurationError, match=rf"\A[^\n]*{message}[^\n]*\Z"):
        _activations(checkpoint, **settings)


@pytest.mark.parametrize(
    ("config", "count", "fits"),
    [
        ({}, 1, True),
        ({}, 5, False),
        ({"num_blocks": 2}, 1, True),
        ({"num_blocks": 300}, 1, False),
        ({"device": "cuda", "num_blocks": 300}, 1, True),
    ],
)
def test_memory(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    count: int,
    fits: bool,
) -> None:
    """Weights of 4 bytes each, with memory for two and a half copies."""
    wanted = ModelConfig(model=str(checkpoint))
    model = check_model(wanted)
    weights = 4 * num_parameters(model.plan)
    monkeypatch.setattr(startup_checks, "available_cpu_memory", lambda: int(2.5 * weights))
    worker = WorkerConfig(model=wanted, scheduler="", **{"device": "cpu", **config})
    if fits:
        check_memory(worker, model, count)
        return
    with pytest.raises(ConfigurationError, match=r"weights.* take .* GiB.* and only .* available"):
        check_memory(worker, model, count)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("share", "may_shrink", "count", "fits"),
    [(0.7, False, 1, True), (0.7, False, 2, False), (1.5, False, 1, False), (1.5, True, 2, True)],
)
def test_memory_of_host_tiers(
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    share: float,
    may_shrink: bool,
    count: int,
    fits: bool,
) -> None:
    wanted = ModelConfig(model=str(checkpoint))
    model = check_model(wanted)
    available = 100 * num_parameters(model.plan)
    monkeypatch.setattr(startup_checks, "available_cpu_memory", lambda: available)
    worker = WorkerConfig(
        model=wanted,
        scheduler="",
        device=device,
        host_kv_bytes=int(share * available),
        host_kv_may_shrink=may_shrink,
    )
    if fits:
        check_memory(worker, model, count)
        return
    with pytest.raises(
        ConfigurationError, match=r"the host tier.* takes .* of memory are available"
    ):
        check_memory(worker, model, count)


def test_a_host_tier_counts_beside_the_weights(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ModelConfig(model=str(checkpoint))
    model = check_model(wanted)
    worker = WorkerConfig(model=wanted, scheduler="", device="cpu", host_kv_bytes=2**20)
    taken = matrix_bytes(worker, model) + 2**20
    monkeypatch.setattr(startup_checks, "available_cpu_memory", lambda: taken)
    check_memory(worker, model)
    monkeypatch.setattr(startup_checks, "available_cpu_memory", lambda: taken - 1)
    with pytest.raises(ConfigurationError, match=r"the weights take .* and the host tier .*GiB"):
        check_memory(worker, model)


@pytest.mark.parametrize(
    ("dtype", "stored", "fits"),
    [
        ("auto", "float32", False),
        ("bfloat16", "float32", True),
        ("half", "float32", False),  # computed in float32
        ("float16", "float16", False),
        ("auto", "float16", True),  # computed in bfloat16
    ],
)
def test_memory_of_number_formats(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, stored: str, fits: bool
) -> None:
    """Five workers, with memory for two and a half copies of 4 bytes a weight."""
    rewrite_config(checkpoint, dtype=stored, torch_dtype=stored)
    wanted = ModelConfig(model=str(checkpoint), dtype=dtype)
    model = check_model(wanted)
    weights = 4 * num_parameters(model.plan)
    monkeypatch.setattr(startup_checks, "available_cpu_memory", lambda: int(2.5 * weights))
    worker = WorkerConfig(model=wanted, scheduler="", device="cpu")
    if fits:
        check_memory(worker, model, 5)
        return
    with pytest.raises(ConfigurationError, match="of each of 5 workers take"):
        check_memory(worker, model, 5)
