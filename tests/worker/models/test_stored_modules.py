"""Modules that a quantized checkpoint stores as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant.weight_format import Quantization

MODULE = "model.layers.0.mlp.up_proj"
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 16}


def _quantized(path: Path, **tensors: torch.Tensor) -> Path:
    """A checkpoint of method "gptq" of which only `tensors` of one module are packed."""
    make_checkpoint(path)
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": CONFIG}
    (path / "config.json").write_text(json.dumps(config))
    stored = load_file(path / "model.safetensors")
    if tensors:
        del stored[f"{MODULE}.weight"]
    stored |= {f"{MODULE}.{name}": tensor for name, tensor in tensors.items()}
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    return path


def _quantization(path: Path) -> Quantization:
    quantization = load_hf_config(path).quantization
    assert quantization is not None
    assert quantization.method == "gptq"
    return quantization


def test_floating_point_matrices_have_no_format(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model", qweight=torch.zeros(8, 112, dtype=torch.int32))
    quantization = _quantization(path)
    assert quantization.format_of(MODULE, 112, 64) is not None
    assert quantization.format_of("model.layers.0.mlp.down_proj", 64, 112) is None
    assert quantization.format_of("model.embed_tokens", 384, 64) is None


def test_a_packed_matrix_that_lacks_tensors_is_an_error(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model", qweight=torch.zeros(8, 112, dtype=torch.int32))
    message = rf"missing tensors: {MODULE}\.qzeros, {MODULE}\.scales\Z"
    with pytest.raises(ValueError, match=message):
        check_weight_files(load_hf_config(path))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_only_wide_numbers_are_unquantized(tmp_path: Path, dtype: torch.dtype) -> None:
    path = _quantized(tmp_path / "model", weight=torch.zeros(112, 64).to(dtype))
    assert _quantization(path).format_of(MODULE, 112, 64) is not None


def test_matrices_that_are_rounded_at_load_keep_their_format(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    settings = {"quant_method": "deepspeedfp", "bits": 6, "group_size": 64}
    (path / "quant_config.json").write_text(json.dumps(settings))
    quantization = load_hf_config(path).quantization
    assert quantization is not None
    assert quantization.format_of(MODULE, 112, 64) is not None


def test_a_shape_that_the_format_cannot_hold_counts_only_where_it_is_stored(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model", qweight=torch.zeros(8, 112, dtype=torch.int32))
    quantization = _quantization(path)
    assert quantization.format_of("model.layers.0.other.gate", 5, 64) is None
    with pytest.raises(ValueError, match="4-bit GPTQ cannot store 5 out features"):
        quantization.format_of(MODULE, 5, 64)


@pytest.mark.parametrize("is_zip", [True, False])
def test_pickled_files_tell_too(tmp_path: Path, is_zip: bool) -> None:
    path = _quantized(tmp_path / "model", qweight=torch.zeros(8, 112, dtype=torch.int32))
    stored = load_file(path / "model.safetensors")
    file = path / "pytorch_model.bin"
    torch.save(stored, file, _use_new_zipfile_serialization=is_zip)
    (path / "model.safetensors").unlink()
    quantization = _quantization(path)
    assert quantization.format_of(MODULE, 112, 64) is not None
    assert quantization.format_of("model.layers.0.mlp.down_proj", 64, 112) is None
    with pytest.raises(ValueError, match=rf"missing tensors: {MODULE}\.qzeros, {MODULE}\.scales"):
        check_weight_files(load_hf_config(path))


def test_the_files_of_the_load_format_decide(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model")
    stored = load_file(path / "model.safetensors")
    stored[f"{MODULE}.qweight"] = torch.zeros(8, 112, dtype=torch.int32)
    del stored[f"{MODULE}.weight"]
    torch.save(stored, path / "pytorch_model.bin")
    for load_format, is_quantized in (("safetensors", False), ("pt", True)):
        found = load_hf_config(path, load_format=load_format).quantization  # type: ignore[arg-type]
        assert found is not None
        assert (found.format_of(MODULE, 112, 64) is not None) == is_quantized


def test_the_rules_decide_without_files(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model")
    (path / "model.safetensors").unlink()
    quantization = _quantization(path)
    assert quantization.format_of(MODULE, 112, 64) is not None
    assert quantization.format_of("lm_head", 384, 64) is None
    for unquantized in ("model.embed_tokens", "transformer.wte", "model.layers.0.mlp.gate"):
        assert quantization.format_of(unquantized, 384, 64) is None


def test_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    path = _quantized(tmp_path / "model")
    (path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a safetensors file"):
        load_hf_config(path)
