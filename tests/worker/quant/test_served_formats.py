"""Small checkpoints of each format: their logits and greedy tokens are those of their numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.models import load_step_model
from support.packing import aqlm, bnb, deepspeed, torchao
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant.formats.aqlm import Scheme

VARIANT = VARIANTS["llama-2-like"]
SIZES: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 128}
# The stored tensors of a matrix by suffix, and its numbers.
Packer = Callable[[Tensor], tuple[Mapping[str, Tensor], Tensor]]
_BNB = {"quant_method": "bitsandbytes"}


def _blocks(kind: str, nested: bool) -> Packer:
    def pack(weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        tensors = bnb.pack_4bit(weight, kind, nested=nested)
        n, k = weight.shape
        return tensors, bnb.unpack_4bit(tensors, n, k)

    return pack


def _int8(weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    tensors = bnb.pack_int8(weight.half())
    return tensors, tensors[".weight"] * (tensors[".SCB"][:, None] / 127)


def _aqlm(weight: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    n, k = weight.shape
    tensors = aqlm.pack(n, k, Scheme(1, 8, 2, 8))
    tensors[".scales"] /= 8
    return tensors, aqlm.reference(tensors, 8)


FORMATS: dict[str, tuple[dict[str, Any], Packer]] = {
    "nf4": (_BNB | {"load_in_4bit": True}, _blocks("nf4", nested=False)),
    "nested-fp4": (_BNB | {"load_in_4bit": True}, _blocks("fp4", nested=True)),
    "bnb-int8": (_BNB | {"load_in_8bit": True}, _int8),
    "aqlm": (
        {
            "quant_method": "aqlm",
            "in_group_size": 8,
            "out_group_size": 1,
            "num_codebooks": 2,
            "nbits_per_codebook": 8,
        },
        _aqlm,
    ),
}
TORCHAO: dict[str, Callable[[Tensor], torchao.Packed]] = {
    "int8": lambda weight: torchao.integers(weight, 1, weight.shape[1]),
    "intx": lambda weight: torchao.integers(weight, 1, 32, kind="IntxUnpackedToInt8Tensor"),
    "int4": lambda weight: torchao.plain_int4(weight, 32),
    "tiled-int4": lambda weight: torchao.tiled_int4(weight, 32),
    "float8": lambda weight: torchao.float8(weight, 1, weight.shape[1], torch.float8_e4m3fn),
    "mxfp4": lambda weight: torchao.block_floats(weight, "float4_e2m1fn_x2", swizzled=True),
    "mxfp6": lambda weight: torchao.block_floats(weight, "fp6_e3m2"),
    "mxfp8": lambda weight: torchao.block_floats(weight, "float8_e4m3fn", swizzled=True),
    "nvfp4": lambda weight: torchao.block_floats(
        weight, "float4_e2m1fn_x2", 16, swizzled=True, tensor_scale=1e-3, kind="NVFP4Tensor"
    ),
}


def _is_packed(name: str) -> bool:
    return name.endswith("_proj.weight")


def _dense(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    path = VARIANT.make(folder / "dense", **SIZES)
    return path, load_file(path / "model.safetensors")


def _copy(dense: Path, config: Mapping[str, Any] | None = None) -> Path:
    path = dense.with_name("quantized")
    shutil.copytree(dense, path)
    if config is not None:
        fields = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(fields | {"quantization_config": config}))
    return path


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, path / "model.safetensors", {"format": "pt"})


def _check(quantized: Path, dense: Path, serves: str, quantization: str | None = None) -> None:
    """The headers fit, and so do logits and greedy tokens."""
    config = load_hf_config(quantized, quantization=quantization)
    check_weight_files(config)
    (ids,) = token_sequences((24,))
    oracle = VARIANT.reference(dense)
    model = load_step_model(quantized, serves, dtype="float32", quantization=quantization)
    runner = PagedRunner(model)
    logits = runner.step({"a": ids})["a"]
    torch.testing.assert_close(logits, oracle([ids])[0], atol=2e-4, rtol=0)
    tokens = [int(logits[-1].argmax())]
    for _ in range(7):
        tokens.append(int(runner.step({"a": tokens[-1:]})["a"][-1].argmax()))
    assert tokens == oracle.greedy(ids, 8)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("name", FORMATS)
def test_checkpoints(tmp_path: Path, name: str, serves: str) -> None:
    config, pack = FORMATS[name]
    dense, tensors = _dense(tmp_path)
    stored = dict(tensors)
    for one in filter(_is_packed, tensors):
        packed, values = pack(stored.pop(one))
        stored |= {one.removesuffix(".weight") + end: part for end, part in packed.items()}
        tensors[one] = values
    quantized = _copy(dense, config)
    _save(quantized, stored)
    _save(dense, tensors)
    _check(quantized, dense, serves)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("name", TORCHAO)
def test_torchao_checkpoints(tmp_path: Path, name: str, serves: str) -> None:
    dense, tensors = _dense(tmp_path)
    quantized = _copy(dense, {"quant_method": "torchao"})
    stored: dict[str, torchao.Packed | Tensor] = {}
    for one, tensor in tensors.items():
        if _is_packed(one):
            packed = TORCHAO[name](tensor)
            stored[one.removesuffix(".weight")] = packed
            tensors[one] = packed.values.float()
        else:
            stored[one] = tensor
    torchao.save(quantized, stored)
    _save(dense, tensors)
    _check(quantized, dense, serves)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("bits", [6, 8])
def test_deepspeedfp_rounds_at_load(tmp_path: Path, bits: int, serves: str) -> None:
    dense, tensors = _dense(tmp_path)
    quantized = _copy(dense)
    (quantized / "quant_config.json").write_text(json.dumps({"bits": bits, "group_size": 64}))
    for one in filter(_is_packed, tensors):
        tensors[one] = deepspeed.rounded(tensors[one], bits, 64)
    _save(dense, tensors)
    _check(quantized, dense, serves, "deepspeedfp")


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_bitsandbytes_rounds_at_load(tmp_path: Path, serves: str) -> None:
    dense, tensors = _dense(tmp_path)
    quantized = _copy(dense)
    for one in filter(_is_packed, tensors):
        tensors[one] = _blocks("nf4", nested=False)(tensors[one])[1]
    _save(dense, tensors)
    _check(quantized, dense, serves, "bitsandbytes")


def test_a_quantized_checkpoint_is_not_rounded_again(tmp_path: Path) -> None:
    config, pack = FORMATS["bnb-int8"]
    dense, tensors = _dense(tmp_path)
    for one in list(filter(_is_packed, tensors)):
        packed, _ = pack(tensors.pop(one))
        tensors |= {one.removesuffix(".weight") + end: part for end, part in packed.items()}
    quantized = _copy(dense, config)
    _save(quantized, tensors)
    assert load_hf_config(quantized, quantization="bitsandbytes").online_quantization is None


@pytest.mark.parametrize("name", ["tpu_int8", "neuron_quant"])
def test_methods_of_other_devices_are_int8_here(tmp_path: Path, name: str) -> None:
    dense, _ = _dense(tmp_path)
    (ids,) = token_sequences((24,))
    models = [load_step_model(dense, "kernels", quantization=one) for one in (name, "int8")]
    assert models[0].description == models[1].description
    assert models[0].description.endswith("int8")
    actual, expected = (PagedRunner(model).step({"a": ids})["a"] for model in models)
    assert torch.equal(actual, expected)


def test_experts_int8_rounds_experts_only(tmp_path: Path) -> None:
    variant = VARIANTS["mixtral-8x7b-like"]
    path = variant.make(tmp_path / "dense")
    rounded = _copy(path)
    tensors = load_file(path / "model.safetensors")
    experts = [name for name in tensors if ".experts." in name]
    assert experts
    for name in experts:
        scales = tensors[name].abs().amax(-1, keepdim=True) / 127
        tensors[name] = (tensors[name] / scales).round() * scales
    _save(rounded, tensors)
    (ids,) = token_sequences((24,))
    actual, expected = (
        PagedRunner(load_step_model(one, "torch", dtype="float32", quantization=quantization)).step(
            {"a": ids}
        )["a"]
        for one, quantization in ((path, "experts_int8"), (rounded, None))
    )
    assert torch.equal(actual, expected)
