"""The loader and quantized matrices: any order of tensors, codes or values, and wrong headers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.checkpoints import make_checkpoint
from taco_kernels.group_codes import GroupCodes
from taco_worker.models.code_segments import CodeSegment, code_segments
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.models.weight_loading import load_weights
from taco_worker.quant.weight_format import CodeLayout, StoredTensor, WeightFormat

CODES = ".codes"
SCALE = ".scale"
EXTRA = "model.layers.0.input_scale"


@dataclass(frozen=True)
class ByteRows:
    """A format for tests: bytes with one scale a row, and an optional shift."""

    n: int
    k: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {
            CODES: StoredTensor((self.n, self.k), ("I8",)),
            SCALE: StoredTensor((self.n, None), ("F16", "F32")),
            ".shift": StoredTensor((1,), ("F32",), is_optional=True),
        }

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("int8", self.k)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        scale = tensors[SCALE].float()[:, :1] + tensors.get(".shift", torch.zeros(1))
        if not bool(scale.isfinite().all()):
            raise ValueError("a scale is not finite")
        return GroupCodes("int8", tensors[CODES], self.k, scale)


@dataclass(frozen=True)
class ByteModules:
    """All MLP matrices and the query projections are `ByteRows`."""

    method = "bytes"

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        return ByteRows(n, k) if ".mlp." in module or module.endswith("q_proj") else None

    def is_extra(self, name: str) -> bool:
        return name == EXTRA


class Sink:
    """Keeps what it gets as float32, and notes which rows came as codes."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, config: ModelConfig, codes: bool) -> None:
        self.values = {
            name: torch.full(parameter.shape, torch.nan)
            for name, parameter in config.plan.parameters.items()
        }
        self.coded: set[str] = set()
        self._codes = codes

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        target = self.values[parameter] if expert is None else self.values[parameter][expert]
        target[start : start + len(rows)] = rows.float()

    def takes_codes(self, parameter: str) -> bool:
        return self._codes

    def put_codes(self, parameter: str, start: int, codes: GroupCodes, expert: int | None) -> None:
        self.coded.add(parameter)
        self.put(parameter, start, codes.values(), expert)


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, ModelConfig]:
    """A checkpoint with some matrices as bytes, and its config."""
    path = make_checkpoint(tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if ".mlp." in name or "q_proj.weight" in name]:
        weight = tensors.pop(name)
        codes = torch.randint(-127, 128, weight.shape, dtype=torch.int8, generator=generator)
        tensors[name.replace(".weight", CODES)] = codes
        scale = torch.rand(weight.shape[0], 2, generator=generator)
        tensors[name.replace(".weight", SCALE)] = scale
    tensors["model.layers.0.mlp.up_proj.shift"] = torch.tensor([0.25])
    tensors["model.layers.1.mlp.up_proj.bias"] = torch.zeros(weight.shape[0])
    tensors[EXTRA] = torch.ones(1)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path, replace(load_hf_config(path), quantization=ByteModules())


@pytest.mark.parametrize("codes", [False, True])
def test_codes_and_values_are_the_same_numbers(
    checkpoint: tuple[Path, ModelConfig], codes: bool
) -> None:
    path, config = checkpoint
    check_weight_files(config)
    sink = Sink(config, codes)
    load_weights(sink, config)
    tensors = load_file(path / "model.safetensors")
    assert bool(sink.coded) == codes
    gate_up = sink.values["layers.0.mlp.gate_up_proj.weight"]
    for rows, (module, shift) in zip(
        gate_up.chunk(2), (("gate_proj", 0), ("up_proj", 0.25)), strict=True
    ):
        name = f"model.layers.0.mlp.{module}"
        expected = tensors[name + CODES].float() * (tensors[name + SCALE][:, :1] + shift)
        assert torch.equal(rows, expected)
    assert not any(bool(one.isnan().any()) for one in sink.values.values())


def test_segments_name_the_rows_with_codes(checkpoint: tuple[Path, ModelConfig]) -> None:
    _, config = checkpoint
    found = code_segments(config.plan, config.quantization, None)
    gate_up, qkv = "layers.0.mlp.gate_up_proj.weight", "layers.0.attn.qkv_proj.weight"
    rows, columns = config.plan.parameters[gate_up].shape
    layout = CodeLayout("int8", columns)
    half = rows // 2
    assert found[gate_up] == (CodeSegment(0, half, layout), CodeSegment(half, half, layout))
    assert [segment.layout for segment in found[qkv]] == [layout, None, None]
    assert sum(segment.count for segment in found[qkv]) == config.plan.parameters[qkv].shape[0]
    assert not any("norm" in name or "embed" in name for name in found)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("q_proj.codes", None, "missing tensors: {name}"),
        ("q_proj.codes", torch.zeros(3, 3, dtype=torch.int8), "wrong shapes: {name} (is [3, 3], "),
        ("q_proj.scale", torch.ones(3, 1), "wrong shapes: {name} (is [3, 1], should be [64, any])"),
        ("q_proj.scale", torch.ones(64), "wrong shapes: {name} (is [64], should be [64, any])"),
        ("q_proj.codes", torch.ones(64, 64), "wrong types: {name} (is F32, should be I8)"),
        ("q_proj.other", torch.ones(1), "unexpected tensors: {name}"),
    ],
)
def test_wrong_headers_are_named_before_loading(
    checkpoint: tuple[Path, ModelConfig], name: str, tensor: Tensor | None, message: str
) -> None:
    path, config = checkpoint
    name = f"model.layers.1.self_attn.{name}"
    _change(path, name, tensor)
    expected = re.escape(message.format(name=name))
    with pytest.raises(ValueError, match=expected):
        check_weight_files(config)
    with pytest.raises(ValueError, match=expected):
        load_weights(Sink(config, True), config)


def test_a_name_of_several_lines_is_one_line(checkpoint: tuple[Path, ModelConfig]) -> None:
    path, config = checkpoint
    _change(path, "model.layers.1.self_attn.q_proj.a\n\x1b[2J" + "x" * 1000, torch.ones(1))
    for read in (
        lambda: check_weight_files(config),
        lambda: load_weights(Sink(config, True), config),
    ):
        with pytest.raises(ValueError, match=r"\A[ -~]*q_proj\.a\\n\\x1b\[2Jx+…\Z") as error:
            read()
        assert len(str(error.value)) < 1000


def test_a_tensor_in_two_files_is_one_error(checkpoint: tuple[Path, ModelConfig]) -> None:
    """With an index that names one of them."""
    path, config = checkpoint
    name = f"model.layers.1.self_attn.q_proj{CODES}"
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    save_file(tensors, path / "a.safetensors", {"format": "pt"})
    save_file({name: tensors[name]}, path / "b.safetensors", {"format": "pt"})
    index = {"weight_map": {**dict.fromkeys(tensors, "a.safetensors"), name: "b.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    place = f"{name} in b.safetensors and {name} in a.safetensors"
    expected = rf"\A[^\n]*{re.escape(str(path))}[^\n]* stored twice: {re.escape(place)}\Z"
    with pytest.raises(ValueError, match=expected):
        check_weight_files(config)
    with pytest.raises(ValueError, match=expected):
        load_weights(Sink(config, True), config)


def test_files_beside_those_of_an_index_are_not_read(checkpoint: tuple[Path, ModelConfig]) -> None:
    path, config = checkpoint
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").rename(path / "a.safetensors")
    (path / "b.safetensors").write_bytes(b"no safetensors file")
    index = {"weight_map": dict.fromkeys(tensors, "a.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    check_weight_files(config)
    load_weights(Sink(config, True), config)


def test_a_missing_file_of_an_index_names_tensors(checkpoint: tuple[Path, ModelConfig]) -> None:
    path, config = checkpoint
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").rename(path / "a.safetensors")
    wanted = {**dict.fromkeys(tensors, "a.safetensors"), "lm_head.weight": "b.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wanted}))
    message = (
        r"names files that are missing: b\.safetensors; b\.safetensors holds 'lm_head\.weight'\Z"
    )
    with pytest.raises(ValueError, match=message):
        check_weight_files(config)


def test_wrong_values_name_the_module(checkpoint: tuple[Path, ModelConfig]) -> None:
    path, config = checkpoint
    module = "model.layers.1.self_attn.q_proj"
    _change(path, module + SCALE, torch.full((64, 1), torch.nan))
    check_weight_files(config)
    file = re.escape(str(path / "model.safetensors"))
    with pytest.raises(ValueError, match=rf"\A{file}: {module}: a scale is not finite\Z"):
        load_weights(Sink(config, False), config)


def test_only_biases_of_zeros_are_ignored(checkpoint: tuple[Path, ModelConfig]) -> None:
    path, config = checkpoint
    name = "model.layers.1.mlp.up_proj.bias"
    tensors = load_file(path / "model.safetensors")
    _change(path, name, torch.ones_like(tensors[name]))
    with pytest.raises(ValueError, match=f"unexpected tensors: {name}"):
        load_weights(Sink(config, False), config)


@dataclass(frozen=True)
class Halves:
    """An online method for tests: bytes with one scale a row, of the MLP."""

    method = "halves"

    def layout_of(self, module: str, n: int, k: int) -> CodeLayout | None:
        return CodeLayout("int8", k) if ".mlp." in module else None

    def quantize(self, rows: Tensor) -> GroupCodes:
        scales = rows.float().abs().amax(1, keepdim=True) / 127
        return GroupCodes("int8", (rows.float() / scales).round().char(), rows.shape[1], scales)


@pytest.mark.parametrize("codes", [False, True])
def test_matrices_are_quantized_at_load(tmp_path: Path, codes: bool) -> None:
    path = make_checkpoint(tmp_path / "model")
    plain = load_hf_config(path)
    config = replace(plain, online_quantization=Halves())
    expected, actual = Sink(plain, False), Sink(config, codes)
    load_weights(expected, plain)
    load_weights(actual, config)
    assert bool(actual.coded) == codes
    for name, values in expected.values.items():
        close = torch.isclose(actual.values[name], values, atol=float(values.abs().max()) / 127)
        assert bool(close.all())
        assert torch.equal(actual.values[name], values) == (".mlp." not in name), name
    segments = code_segments(config.plan, None, Halves())
    assert all(".mlp." in name for name in segments)


def _change(path: Path, name: str, tensor: Tensor | None) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, file, {"format": "pt"})
