"""bitsandbytes: the bits of its reader, the same bits from codes, and one line for damage."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import bitsandbytes.functional as bnb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from support.packing.bnb import pack_4bit, pack_int8, unpack_4bit
from taco_worker.quant.formats.bitsandbytes.blocks import Blocks, Nested
from taco_worker.quant.formats.bitsandbytes.checkpoint import read
from taco_worker.quant.formats.bitsandbytes.online import OnlineNf4
from taco_worker.quant.formats.bitsandbytes.rows import Int8Rows
from taco_worker.quant.weight_format import WeightFormat

FOUR_BITS = {"load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
EIGHT_BITS = {"load_in_4bit": False, "load_in_8bit": True}
STATE = ".weight.quant_state.bitsandbytes__nf4"


def matrix(n: int, k: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, k, generator=generator) * 0.05).to(dtype)


def write(folder: Path, modules: Mapping[str, Mapping[str, Tensor]]) -> Path:
    tensors = {
        name + suffix: part for name, parts in modules.items() for suffix, part in parts.items()
    }
    save_file(
        {name: part.contiguous() for name, part in tensors.items()}, folder / "model.safetensors"
    )
    return folder


def check_shapes(format_: WeightFormat, tensors: Mapping[str, Tensor]) -> None:
    assert set(format_.tensors) == set(tensors)
    for suffix, stored in format_.tensors.items():
        shape = tuple(tensors[suffix].shape)
        assert len(shape) == len(stored.shape), suffix
        assert all(want in (None, size) for want, size in zip(stored.shape, shape, strict=True))


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["nf4", "fp4"]),
    nested=st.booleans(),
    n=st.integers(1, 12),
    k=st.sampled_from([32, 33, 64, 96, 128, 160, 512, 4096]),
    block_size=st.sampled_from([32, 64, 128, 1024, 4096]),
    storage=st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_four_bits_are_read_as_bitsandbytes_reads_them(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    nested: bool,
    n: int,
    k: int,
    block_size: int,
    storage: torch.dtype,
    dtype: torch.dtype,
    seed: int,
) -> None:
    if (n * k + 1) // 2 % storage.itemsize:
        storage = torch.uint8
    tensors = pack_4bit(matrix(n, k, seed, dtype), kind, block_size, nested=nested, storage=storage)
    folder = write(tmp_path_factory.mktemp("bnb"), {"layers.0.up_proj": tensors})
    format_ = read(FOUR_BITS, folder).format_of("layers.0.up_proj", n, k)
    assert isinstance(format_, Blocks)
    check_shapes(format_, tensors)

    values = format_.dequantize(tensors)

    assert torch.equal(values, unpack_4bit(tensors, n, k))
    if (layout := format_.layout) is not None:
        codes = format_.codes(tensors)
        assert torch.equal(codes.values(), values)
        assert (codes.kind, codes.group) == (layout.kind, layout.group)


def test_blocks_that_fit_rows_are_groups() -> None:
    layouts = {
        k: format_.layout.group if (format_ := Blocks(4, k, "nf4", 64)).layout else None
        for k in (64, 4096, 96, 33, 16)
    }
    assert layouts == {64: 64, 4096: 64, 96: 32, 33: None, 16: 16}


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 9), k=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_int8_codes_are_those_of_bitsandbytes(n: int, k: int, seed: int) -> None:
    tensors = pack_int8(matrix(n, k, seed, torch.float16))
    format_ = Int8Rows(n, k)
    check_shapes(format_, tensors)

    values = format_.dequantize(tensors)

    theirs = bnb.int8_vectorwise_dequant(tensors[".weight"], tensors[".SCB"]).float()
    torch.testing.assert_close(values, theirs, rtol=3 * 2**-24, atol=0)
    assert torch.equal(format_.codes(tensors).values(), values)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 12),
    k=st.sampled_from([32, 64, 96, 128, 896]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
    has_zeros=st.booleans(),
)
def test_codes_made_at_load_are_those_of_bitsandbytes(
    n: int, k: int, dtype: torch.dtype, seed: int, has_zeros: bool
) -> None:
    weight = matrix(n, k, seed, dtype)
    if has_zeros:
        weight[0] = 0
    tensors = pack_4bit(weight)

    codes = OnlineNf4().quantize(weight)

    stored = Blocks(n, k, "nf4", 64).codes(tensors)
    assert torch.equal(codes.codes, stored.codes)
    assert torch.equal(codes.scales, stored.scales)
    assert torch.equal(codes.values(), unpack_4bit(tensors, n, k))


def test_only_linear_layers_are_quantized_at_load() -> None:
    layout = OnlineNf4().layout_of("model.layers.0.mlp.down_proj", 64, 256)
    assert layout is not None
    assert (layout.kind, layout.group) == ("table16", 64)
    for module in ("lm_head", "model.embed_tokens", "model.layers.0.mlp.gate", "transformer.wte"):
        assert OnlineNf4().layout_of(module, 64, 256) is None
    assert OnlineNf4().layout_of("model.layers.0.mlp.down_proj", 64, 33) is None


def test_matrices_without_scales_are_not_quantized(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "language_model.model.layers.0.mlp.up_proj": pack_4bit(matrix(8, 64)),
            "lm_head": {".weight": matrix(8, 64)},
        },
    )

    quantization = read(FOUR_BITS | {"llm_int8_skip_modules": ["lm_head"]}, tmp_path)

    assert quantization.format_of("lm_head", 8, 64) is None
    assert quantization.format_of("model.layers.1.mlp.up_proj", 8, 64) is None
    assert quantization.format_of("model.layers.0.mlp.up_proj", 8, 64) is not None


def test_config_decides_where_weight_files_are_not_at_hand(tmp_path: Path) -> None:
    quantization = read(EIGHT_BITS | {"llm_int8_skip_modules": ["mlp.down_proj"]}, tmp_path)

    assert isinstance(quantization.format_of("model.layers.0.mlp.up_proj", 8, 64), Int8Rows)
    assert quantization.format_of("model.layers.0.mlp.down_proj", 8, 64) is None
    assert read(EIGHT_BITS, tmp_path).format_of("lm_head", 8, 64) is None


def _state(change: Callable[[dict[str, Any]], object]) -> dict[str, Tensor]:
    tensors = pack_4bit(matrix(8, 64), nested=True)
    fields = json.loads(bytes(tensors[STATE].tolist()))
    change(fields)
    tensors[STATE] = torch.from_numpy(np.frombuffer(json.dumps(fields).encode(), np.uint8).copy())
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.update(blocksize=48), "its blocksize is 48, not one of 32, 64"),
        (lambda fields: fields.update(blocksize=True), "its blocksize is True"),
        (lambda fields: fields.pop("blocksize"), "its blocksize is None"),
        (lambda fields: fields.update(quant_type="fp4"), "its quant_type is 'fp4'"),
        (lambda fields: fields.update(nested_offset="x"), "its nested_offset is 'x'"),
        (lambda fields: fields.update(nested_offset=float("nan")), "its nested_offset is nan"),
        (lambda fields: fields.update(shape=[8, "64"]), r"its shape is \[8, '64'\]"),
    ],
)
def test_damaged_settings_are_one_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    write(tmp_path, {"layers.0.up_proj": _state(change)})
    with pytest.raises(
        ValueError, match=rf"layers\.0\.up_proj.*nf4 in .*safetensors.*{message}"
    ) as e:
        read(FOUR_BITS, tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"[" * 60000])
def test_settings_that_are_no_json_are_one_error(tmp_path: Path, content: bytes) -> None:
    tensors = pack_4bit(matrix(8, 64))
    tensors[STATE] = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    write(tmp_path, {"layers.0.up_proj": tensors})
    with pytest.raises(ValueError, match=r"cannot read layers\.0\.up_proj.*it is not (valid )?"):
        read(FOUR_BITS, tmp_path)


def test_settings_of_another_shape_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"layers.0.up_proj": pack_4bit(matrix(8, 64))})
    with pytest.raises(ValueError, match=r"of a matrix \[8, 64\], not \[64, 8\]"):
        read(FOUR_BITS, tmp_path).format_of("layers.0.up_proj", 64, 8)


def test_scales_without_settings_are_an_error(tmp_path: Path) -> None:
    tensors = pack_4bit(matrix(8, 64))
    del tensors[STATE]
    write(tmp_path, {"layers.0.up_proj": tensors})
    with pytest.raises(ValueError, match=r"layers\.0\.up_proj\.weight\.absmax has no "):
        read(FOUR_BITS, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"load_in_8bit": True, "load_in_4bit": True}, "are both true"),
        ({}, "are both false"),
        ({"load_in_4bit": "yes"}, "load_in_4bit of quantization_config must be true or false"),
        (EIGHT_BITS, "says load_in_8bit, but layers.0.up_proj has 4-bit codes"),
    ],
)
def test_contradicting_settings_are_one_error(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    write(tmp_path, {"layers.0.up_proj": pack_4bit(matrix(8, 64))})
    with pytest.raises(ValueError, match=message):
        read(config, tmp_path)


def test_pickled_weights_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="read from safetensors files"):
        read(FOUR_BITS, tmp_path)


@pytest.mark.parametrize("nested", [False, True])
def test_scales_that_are_not_finite_are_an_error(nested: bool) -> None:
    tensors = pack_4bit(matrix(8, 64), nested=nested)
    tensors[".weight.nested_absmax" if nested else ".weight.absmax"][0] = float("nan")
    format_ = Blocks(8, 64, "nf4", 64)
    if nested:
        state = json.loads(bytes(tensors[STATE].tolist()))
        format_ = Blocks(8, 64, "nf4", 64, nested=Nested(256, state["nested_offset"]))
    for decode in (format_.dequantize, format_.codes):
        with pytest.raises(ValueError, match="absmax has values that are not finite"):
            decode(tensors)


def test_int8_codes_in_another_order_are_an_error() -> None:
    tensors = pack_int8(matrix(8, 64, dtype=torch.float16))
    tensors[".weight_format"] = torch.tensor(1, dtype=torch.uint8)
    with pytest.raises(ValueError, match="weight_format is not 0"):
        Int8Rows(8, 64).dequantize(tensors)
    tensors |= {".weight_format": torch.tensor(0, dtype=torch.uint8)}
    tensors[".SCB"][3] = float("inf")
    with pytest.raises(ValueError, match="SCB has values that are not finite"):
        Int8Rows(8, 64).dequantize(tensors)


def test_numbers_that_are_not_finite_are_not_quantized_at_load() -> None:
    weight = matrix(8, 64)
    weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match="numbers are not finite"):
        OnlineNf4().quantize(weight)
