"""torchao: numbers of its tensors from safetensors, the same bits from codes; pickles refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.packing.torchao import (
    Packed,
    block_floats,
    float8,
    integers,
    plain_int4,
    save,
    tiled_int4,
)
from taco_kernels.cpu.coded_part import layout_of
from taco_worker.quant.formats.torchao.checkpoint import TorchAo, read
from taco_worker.quant.formats.torchao.names import ZERO_POINT
from taco_worker.quant.weight_format import WeightFormat

MODULE = "model.layers.0.mlp.up_proj"


def matrix(n: int, k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=generator) * 0.05


def format_of(folder: Path, packed: Packed) -> tuple[WeightFormat, dict[str, Tensor]]:
    """The format of a saved weight, and its tensors by suffix, whose shapes and types are right."""
    save(folder, {MODULE: packed, "model.norm.weight": torch.ones(4)})
    n, k = packed.values.shape
    format_ = read({}, folder).format_of(MODULE, n, k)
    assert format_ is not None
    stored = load_file(folder / "model.safetensors")
    tensors = {suffix: stored[MODULE + suffix] for suffix in format_.tensors}
    assert len(tensors) == len(packed.tensors)
    for suffix, expected in format_.tensors.items():
        assert tuple(tensors[suffix].shape) == expected.shape, suffix
    return format_, tensors


def check_codes(format_: WeightFormat, tensors: dict[str, Tensor]) -> Tensor:
    """The dequantized matrix, which codes of the promised layout have in every bit."""
    values, layout = format_.dequantize(tensors), format_.layout
    assert layout is not None
    codes = format_.codes(tensors)
    assert torch.equal(codes.values(), values)
    assert layout_of(codes, layout.scale_type, layout.zero) == layout
    return values


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(["Int8Tensor", "IntxUnpackedToInt8Tensor"]),
    row_blocks=st.integers(1, 6),
    rows=st.sampled_from([1, 4]),
    columns=st.sampled_from([32, 64, 96]),
    column_blocks=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_integers(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    row_blocks: int,
    rows: int,
    columns: int,
    column_blocks: int,
    seed: int,
) -> None:
    weight = matrix(row_blocks * rows, columns * column_blocks, seed)
    packed = integers(weight, rows, columns, kind=kind)
    format_, tensors = format_of(tmp_path_factory.mktemp("ao"), packed)
    assert torch.equal(check_codes(format_, tensors), packed.values)


def test_symmetric_int8_rows_have_no_zeros(tmp_path: Path) -> None:
    format_, _ = format_of(tmp_path, integers(matrix(8, 64), 1, 64))
    assert format_.layout is not None
    assert not format_.layout.has_zeros


def _without_zeros(folder: Path, kind: str, listed: list[str] | None) -> WeightFormat | None:
    """The format of a weight whose zero points are not stored."""
    packed = integers(matrix(8, 64), 1, 64, kind=kind)
    del packed.tensors["zero_point"]
    fields = {"_type": kind, "_data": packed.data}
    fields |= {} if listed is None else {"_tensor_data_names": listed}
    metadata = {f"{MODULE}.weight": json.dumps(fields), "tensor_names": "[]"}
    save_file(packed.named(MODULE), folder / "model.safetensors", metadata)
    return read({}, folder).format_of(MODULE, 8, 64)


@pytest.mark.parametrize(
    ("kind", "listed", "has_zeros"),
    [
        ("Int8Tensor", ["qdata", "scale"], False),
        ("Int8Tensor", ["zero_point", "qdata", "scale"], True),
        ("IntxUnpackedToInt8Tensor", ["qdata", "scale"], True),
        ("IntxUnpackedToInt8Tensor", None, True),
    ],
)
def test_the_metadata_tell_whether_zero_points_must_be_stored(
    tmp_path: Path, kind: str, listed: list[str] | None, has_zeros: bool
) -> None:
    format_ = _without_zeros(tmp_path, kind, listed)
    assert format_ is not None
    assert (ZERO_POINT in format_.tensors) == has_zeros


def test_metadata_that_do_not_tell_of_zero_points_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]*do not say that it is symmetric[^\n]*\Z"):
        _without_zeros(tmp_path, "Int8Tensor", None)


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 9),
    group=st.sampled_from([32, 64, 128]),
    groups=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_plain_int4(
    tmp_path_factory: pytest.TempPathFactory, n: int, group: int, groups: int, seed: int
) -> None:
    packed = plain_int4(matrix(n, group * groups, seed), group)
    format_, tensors = format_of(tmp_path_factory.mktemp("ao"), packed)
    assert torch.equal(check_codes(format_, tensors), packed.values.float())


@pytest.mark.parametrize(("n", "k"), [(8, 1024), (16, 256), (5, 1536)])
@pytest.mark.parametrize("inner_tiles", [2, 8])
@pytest.mark.parametrize("group", [32, 128])
def test_tiled_int4(tmp_path: Path, n: int, k: int, inner_tiles: int, group: int) -> None:
    packed = tiled_int4(matrix(n, k), group, inner_tiles)
    format_, tensors = format_of(tmp_path, packed)
    assert torch.equal(check_codes(format_, tensors), packed.values.float())


@settings(deadline=None, max_examples=30)
@given(
    rows=st.sampled_from([1, 2, 8]),
    columns=st.sampled_from([32, 128]),
    dtype=st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2]),
    seed=st.integers(0, 2**31),
)
def test_float8(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    packed = float8(matrix(8, 128, seed), rows, columns, dtype)
    format_, tensors = format_of(tmp_path_factory.mktemp("ao"), packed)
    if dtype == torch.float8_e4m3fn:
        assert torch.equal(check_codes(format_, tensors), packed.values)
    else:
        assert format_.layout is None
        assert torch.equal(format_.dequantize(tensors), packed.values)


def test_one_scale_of_a_float8_matrix_may_have_no_axis(tmp_path: Path) -> None:
    packed = float8(matrix(8, 128), 8, 128, torch.float8_e4m3fn)
    packed.tensors["scale"] = packed.tensors["scale"].reshape(())
    format_, tensors = format_of(tmp_path, packed)
    assert torch.equal(check_codes(format_, tensors), packed.values)


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 9),
    groups=st.integers(1, 5),
    group=st.sampled_from([16, 32, 64]),
    elements=st.sampled_from(
        ["float4_e2m1fn_x2", "fp6_e2m3", "fp6_e3m2", "float8_e4m3fn", "float8_e5m2"]
    ),
    swizzled=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_mx_formats(
    tmp_path_factory: pytest.TempPathFactory,
    n: int,
    groups: int,
    group: int,
    elements: str,
    swizzled: bool,
    seed: int,
) -> None:
    packed = block_floats(matrix(n, group * groups, seed), elements, group, swizzled=swizzled)
    format_, tensors = format_of(tmp_path_factory.mktemp("ao"), packed)
    if elements == "float8_e5m2":
        assert format_.layout is None
        assert torch.equal(format_.dequantize(tensors), packed.values)
    else:
        assert torch.equal(check_codes(format_, tensors), packed.values)


@settings(deadline=None, max_examples=30)
@given(
    n=st.integers(1, 9),
    groups=st.integers(1, 20),
    swizzled=st.booleans(),
    tensor_scale=st.none() | st.floats(1e-6, 0.01),
    seed=st.integers(0, 2**31),
)
def test_nvfp4(
    tmp_path_factory: pytest.TempPathFactory,
    n: int,
    groups: int,
    swizzled: bool,
    tensor_scale: float | None,
    seed: int,
) -> None:
    packed = block_floats(
        matrix(n, 16 * groups, seed),
        "float4_e2m1fn_x2",
        16,
        swizzled=swizzled,
        tensor_scale=tensor_scale,
        kind="NVFP4Tensor",
    )
    format_, tensors = format_of(tmp_path_factory.mktemp("ao"), packed)
    assert torch.equal(check_codes(format_, tensors), packed.values)
    codes = format_.codes(tensors)
    assert codes.steps is not None  # a byte a scale, as stored
    assert torch.equal(codes.steps.scales(), codes.scales)


def test_tiles_of_many_rows(tmp_path: Path) -> None:
    """Several tiles down and across, the last of them not whole."""
    packed = block_floats(matrix(300, 32 * 9), "float8_e4m3fn", swizzled=True)
    format_, tensors = format_of(tmp_path, packed)
    assert torch.equal(check_codes(format_, tensors), packed.values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"elem_dtype": "int8"}, "elem_dtype of torchao is 'int8'; known: float4_e2m1fn_x2, "),
        ({"elem_dtype": None}, "elem_dtype of torchao is None; known: "),
        ({"elem_dtype": {"_data": ["x"]}}, r"elem_dtype of torchao is \['x'\]; known: "),
        ({"block_size": 48}, "block_size of torchao is 48; it must be even, and divide 64 colu"),
        ({"block_size": -32}, "block_size of torchao is -32; it must be even, and divide 64 col"),
        ({"block_size": [1, 32]}, r"block_size of torchao is \[1, 32\]; it must be even"),
        ({"is_swizzled_scales": 1}, "is_swizzled_scales of torchao must be true or false, not 1"),
    ],
)
def test_wrong_settings_of_blocks_are_one_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    packed = block_floats(matrix(8, 64), "fp6_e2m3")
    packed.data |= changes
    save(tmp_path, {MODULE: packed})
    with pytest.raises(ValueError, match=rf"\A{MODULE}: (?:the )?{message}[^\n]*\Z"):
        read({}, tmp_path).format_of(MODULE, 8, 64)


@pytest.mark.parametrize(
    ("elements", "end", "byte", "message"),
    [
        ("fp6_e2m3", "qdata", 64, "6-bit floats have values of more than 6 bits"),
        ("float8_e4m3fn", "qdata", 0x7F, "8-bit floats has NaNs"),
        ("float8_e5m2", "qdata", 0x7C, "8-bit floats have values that are not finite"),
        ("float4_e2m1fn_x2", "scale", 255, "scales has NaNs"),
        ("float4_e2m1fn_x2", "scale", 254, "scales has huge numbers"),
    ],
)
def test_wrong_numbers_of_blocks_are_errors(
    tmp_path: Path, elements: str, end: str, byte: int, message: str
) -> None:
    packed = block_floats(matrix(8, 64), elements)
    packed.tensors[end].view(torch.uint8)[0, 0] = byte
    format_, tensors = format_of(tmp_path, packed)
    with pytest.raises(ValueError, match=message):
        format_.dequantize(tensors)


def test_a_scale_of_the_tensor_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    fp4 = "float4_e2m1fn_x2"
    packed = block_floats(matrix(8, 64), fp4, 16, tensor_scale=0.1, kind="NVFP4Tensor")
    packed.tensors["per_tensor_scale"] = torch.tensor(float("inf"))
    format_, tensors = format_of(tmp_path, packed)
    with pytest.raises(ValueError, match="scales with per_tensor_scale has NaNs or infinite"):
        format_.codes(tensors)


def test_metadata_of_all_files_count(tmp_path: Path) -> None:
    save(tmp_path, {"layers.0.up_proj": integers(matrix(8, 64), 1, 64)}, "a.safetensors")
    save(tmp_path, {"layers.1.up_proj": integers(matrix(8, 64), 1, 64)}, "b.safetensors")
    weight_map = {"layers.0": "a.safetensors", "layers.1": "b.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    quantization = read({}, tmp_path)
    assert quantization.format_of("layers.0.up_proj", 8, 64) is not None
    assert quantization.format_of("layers.1.up_proj", 8, 64) is not None
    assert quantization.format_of("layers.2.up_proj", 8, 64) is None
    assert quantization.is_extra("layers.0.up_proj._weight_act_quant_scale")


def test_pickled_weights_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(ValueError, match="are pickled, and pickles run code: save the model again"):
        read({"quant_method": "torchao"}, tmp_path)


def _saved(folder: Path, **changes: Any) -> TorchAo:
    """Reads a checkpoint with changed metadata of its only weight."""
    packed = integers(matrix(8, 64), 1, 64)
    save(folder, {MODULE: packed})
    fields = {"_type": packed.kind, "_data": packed.data} | changes
    name = f"{MODULE}.weight"
    metadata = {name: json.dumps(fields), "tensor_names": json.dumps([name])}
    save_file(packed.named(MODULE), folder / "model.safetensors", metadata)
    return read({}, folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_type": "Int4PlainInt32Tensor"}, "is a torchao Int4PlainInt32Tensor, which is not su"),
        ({"_type": 3}, "is a torchao 3, which is not supported"),
        ({"_tensor_data_names": 3}, "_tensor_data_names is not a list of names"),
        ({"_tensor_data_names": ["qdata", "act_pre_scale"]}, "has scales of activations"),
        ({"_data": 3}, "cannot read torchao's metadata of .*: _data is not an object"),
        ({"_data": {}}, "the block_size of torchao is None, not two sizes"),
        ({"_data": {"block_size": [1, 48]}}, r"blocks of \[1, 48\] do not divide a matrix \[8, 64"),
        ({"_data": {"block_size": [0, 64]}}, "not two sizes"),
    ],
)
def test_damaged_metadata_is_one_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        _saved(tmp_path, **changes).format_of(MODULE, 8, 64)
    assert "\n" not in str(error.value)


def test_metadata_that_is_no_json_is_one_error(tmp_path: Path) -> None:
    metadata = {f"{MODULE}.weight": "{", "tensor_names": "[]"}
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(ValueError, match=r"metadata of .*up_proj\.weight: it is not valid JSON"):
        read({}, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"_type": "Tensor", "_type": "Int8Tensor"}', "the key '_type' occurs twice"),
        ('{"_type": NaN}', "is a torchao nan, which is not supported"),
        ("[" * 100_000, "it is not valid JSON"),
        ('{"_type": "Int8Tensor", "_data": {"a\\nb": 1, "a\\nb": 1}}', "the key 'a"),
    ],
)
def test_hostile_metadata_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    metadata = {f"{MODULE}.weight": text, "tensor_names": "[]"}
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors", metadata)
    with pytest.raises(ValueError, match=rf"\A[^\n]*up_proj\.weight[^\n]*{message}[^\n]*\Z"):
        read({}, tmp_path)


def test_files_without_metadata_are_one_error(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"lack the metadata of torchao \(tensor_names\)"):
        read({}, tmp_path)


def test_scales_of_activations_are_refused(tmp_path: Path) -> None:
    packed = integers(matrix(8, 64), 1, 64)
    packed.tensors["act_pre_scale"] = torch.ones(64)
    save(tmp_path, {MODULE: packed})
    with pytest.raises(ValueError, match="has scales of activations"):
        read({}, tmp_path)


@pytest.mark.parametrize("end", ["scale", "zero_point"])
def test_numbers_that_are_not_finite_are_an_error(tmp_path: Path, end: str) -> None:
    packed = plain_int4(matrix(8, 64), 32)
    packed.tensors[end][0, 0] = float("nan")
    format_, tensors = format_of(tmp_path, packed)
    with pytest.raises(ValueError, match="have values that are not finite"):
        format_.dequantize(tensors)


def test_float8_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    packed = float8(matrix(8, 128), 8, 128, torch.float8_e4m3fn)
    packed.tensors["qdata"].view(torch.uint8)[0, 0] = 0x7F
    format_, tensors = format_of(tmp_path, packed)
    for decode in (format_.dequantize, format_.codes):
        with pytest.raises(ValueError, match="8-bit floats have values that are not finite"):
            decode(tensors)
