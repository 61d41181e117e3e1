"""compressed-tensors: its own compressors write, and its decompressors are the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationScheme
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support.quantized import matrix_of
from taco_worker.quant.formats.compressed_tensors.config import CompressedTensors, read
from taco_worker.quant.formats.compressed_tensors.packed_matrix import PackedMatrix
from taco_worker.quant.weight_format import WeightFormat

NO_FILES = Path("/none")
SCALES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
ROWS = st.sampled_from([1, 2, 33, 40])


def checkpoint(weights: dict[str, Any], format_: str | None, **group: Any) -> CompressedTensors:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, **group}}
    config = {"config_groups": groups, "format": format_, "ignore": ["lm_head"]}
    return read(config, NO_FILES)


def written(
    weights: dict[str, Any], format_: str, matrix: Tensor, state: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors by suffix that compressed-tensors stores, and what it reads back."""
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = BaseCompressor.get_value_from_registry(format_)
    stored = compressor.compress({"weight": matrix, **state}, scheme)
    tensors = {f".{name}": tensor.clone() for name, tensor in stored.items()}
    return tensors, compressor.decompress(stored, scheme)["weight"].detach()


def assert_reads(format_: WeightFormat | None, tensors: dict[str, Tensor], oracle: Tensor) -> None:
    """The oracle's products are rounded to its type."""
    matrix = matrix_of(format_, tensors)
    assert torch.equal(matrix.to(oracle.dtype), oracle)


def scales_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * 0.1 + 0.01).to(dtype)


def matrix_like(n: int, k: int, largest: float, seed: int) -> Tensor:
    return (torch.rand((n, k), generator=torch.Generator().manual_seed(seed)) * 2 - 1) * largest


def zeros_of(shape: tuple[int, ...], bits: int, seed: int) -> Tensor:
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int8)


@given(
    bits=st.integers(1, 8),
    n=st.sampled_from([9, 33, 40]),  # version 0.20 cannot read one word of 4-bit zero points
    groups=st.integers(1, 3),
    group=st.sampled_from([-1, 3, 16, 32, 100]),
    is_symmetric=st.booleans(),
    scale_dtype=SCALES,
    seed=st.integers(0, 999),
)
def test_packed_integers(
    bits: int,
    n: int,
    groups: int,
    group: int,
    is_symmetric: bool,
    scale_dtype: torch.dtype,
    seed: int,
) -> None:
    k = 37 if group == -1 else groups * group
    weights: dict[str, Any] = {"num_bits": bits, "type": "int", "symmetric": is_symmetric}
    weights |= {"group_size": group, "strategy": "channel" if group == -1 else "group"}
    shape = (n, 1 if group == -1 else groups)
    state = {"weight_scale": scales_of(shape, scale_dtype, seed)}
    if not is_symmetric:
        state["weight_zero_point"] = zeros_of(shape, bits, seed)
    matrix = matrix_like(n, k, 0.06 * 2**bits, seed)
    tensors, oracle = written(weights, "pack-quantized", matrix, state)
    format_ = checkpoint(weights, "pack-quantized").format_of("model.layers.0.x", n, k)
    assert_reads(format_, tensors, oracle)


@given(bits=st.integers(1, 8), is_symmetric=st.booleans(), seed=st.integers(0, 999))
def test_activation_order(bits: int, is_symmetric: bool, seed: int) -> None:
    """Version 0.20 reads no such files any more; older versions wrote them."""
    n, k, group = 5, 96, 32
    generator = torch.Generator().manual_seed(seed)
    integers = zeros_of((n, k), bits, seed)
    order = torch.arange(k).remainder(3)[torch.randperm(k, generator=generator)].int()
    scales, zeros = scales_of((n, 3), torch.float32, seed), zeros_of((n, 3), bits, seed + 5)
    tensors = {
        ".weight_packed": pack_to_int32(integers, bits),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor([n, k]),
        ".weight_g_idx": order,
    }
    if not is_symmetric:
        tensors[".weight_zero_point"] = pack_to_int32(zeros, bits, packed_dim=0)
    weights = {"num_bits": bits, "group_size": group, "symmetric": is_symmetric}
    quantization = checkpoint({**weights, "actorder": "group"}, "pack-quantized")
    subtracted = 0.0 if is_symmetric else zeros.float()[:, order]
    expected = (integers.float() - subtracted) * scales[:, order]
    format_ = quantization.format_of("x", n, k)
    assert torch.equal(matrix_of(format_, tensors), expected)
    tensors[".weight_g_idx"] = torch.full((k,), -1, dtype=torch.int32)
    in_order = torch.arange(k) // group
    subtracted = 0.0 if is_symmetric else zeros.float()[:, in_order]
    assert torch.equal(
        matrix_of(format_, tensors), (integers.float() - subtracted) * scales[:, in_order]
    )


@given(
    format_=st.sampled_from(["int-quantized", "float-quantized", "naive-quantized"]),
    kind=st.sampled_from(["int", "float"]),
    strategy=st.sampled_from(["tensor", "channel", "group", "block"]),
    n=ROWS,
    is_symmetric=st.booleans(),
    scale_dtype=SCALES,
    seed=st.integers(0, 999),
)
def test_one_number_a_byte(
    format_: str,
    kind: str,
    strategy: str,
    n: int,
    is_symmetric: bool,
    scale_dtype: torch.dtype,
    seed: int,
) -> None:
    kind = {"int-quantized": "int", "float-quantized": "float"}.get(format_, kind)
    is_symmetric = is_symmetric or kind == "float" or strategy == "block"
    k = 64
    weights: dict[str, Any] = {"num_bits": 8, "type": kind, "symmetric": is_symmetric}
    weights |= {"strategy": strategy}
    grouped: dict[str, dict[str, Any]] = {
        "group": {"group_size": 16},
        "block": {"block_structure": [16, 32]},
    }
    weights |= grouped.get(strategy, {})
    shapes = {"tensor": (1,), "channel": (n, 1), "group": (n, 4), "block": (-(-n // 16), 2)}
    shape = shapes[strategy]
    state = {"weight_scale": scales_of(shape, scale_dtype, seed)}
    if not is_symmetric:
        state["weight_zero_point"] = zeros_of(shape, 8, seed)
    tensors, oracle = written(weights, format_, matrix_like(n, k, 10, seed), state)
    quantization = checkpoint(weights, format_, input_activations={"num_bits": 8})
    assert_reads(quantization.format_of("x", n, k), tensors, oracle)


@given(n=ROWS, groups=st.integers(1, 4), seed=st.integers(0, 999))
def test_nvfp4(n: int, groups: int, seed: int) -> None:
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    matrix, whole = matrix_like(n, 16 * groups, 1, seed), torch.tensor([700.0])
    scales = (scales_of((n, groups), torch.float32, seed) * whole).to(torch.float8_e4m3fn)
    state = {"weight_scale": scales.float(), "weight_global_scale": whole}
    tensors, oracle = written(weights, "nvfp4-pack-quantized", matrix, state)
    format_ = checkpoint(weights, "nvfp4-pack-quantized").format_of("x", n, 16 * groups)
    assert_reads(format_, tensors, oracle)
    in_float32 = scales.float().repeat_interleave(16, 1) / whole
    assert torch.equal(
        matrix_of(format_, tensors), (oracle / in_float32).round(decimals=1) * in_float32
    )


@given(bits=st.sampled_from([4, 6, 8]), n=ROWS, groups=st.integers(1, 3), seed=st.integers(0, 999))
def test_mx_formats(bits: int, n: int, groups: int, seed: int) -> None:
    name = {4: "mxfp4-pack-quantized", 6: "mxfp6-pack-quantized", 8: "mxfp8-quantized"}[bits]
    weights: dict[str, Any] = {"num_bits": bits, "type": "float", "group_size": 32}
    weights |= {"strategy": "group", "scale_dtype": "torch.uint8"}
    generator = torch.Generator().manual_seed(seed)
    scales = torch.randint(-20, 10, (n, groups), generator=generator).float().exp2()
    matrix = matrix_like(n, 32 * groups, 1, seed) * scales.repeat_interleave(32, 1) * 9
    tensors, oracle = written(weights, name, matrix, {"weight_scale": scales})
    for format_ in (name, "mixed-precision"):  # then it follows from the weights
        quantization = checkpoint(weights, format_)
        assert_reads(quantization.format_of("x", n, 32 * groups), tensors, oracle)


INT4 = {"num_bits": 4, "type": "int", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}


def groups_of(**groups: dict[str, Any]) -> CompressedTensors:
    config = {
        "config_groups": groups,
        "format": "mixed-precision",
        "ignore": ["lm_head", "re:.*gate$", "model.language_model.layers.1.mlp.up_proj"],
    }
    return read(config, NO_FILES)


def test_targets_and_ignored_modules() -> None:
    quantization = groups_of(
        group_0={"targets": ["Linear"], "weights": INT4},
        group_1={"targets": ["re:.*down_proj", "re:model.layers.3.*"], "weights": INT8},
        group_2={"targets": ["model.layers.3.mlp.up_proj"], "weights": {"num_bits": 2}},
        group_3={"targets": ["re:.*self_attn"], "weights": None, "input_activations": {}},
    )

    def bits(module: str) -> int | None:
        format_ = quantization.format_of(module, 64, 64)
        if format_ is None:
            return None
        assert isinstance(format_, PackedMatrix)
        return format_.bits

    assert bits("model.layers.0.mlp.up_proj") == 4
    assert bits("model.layers.0.mlp.experts.3.up_proj") == 4
    assert bits("model.layers.0.mlp.experts.gate_up_proj") == 4
    assert bits("model.layers.0.mlp.down_proj") == 8
    assert bits("model.layers.3.mlp.gate_proj") == 8
    assert bits("model.layers.3.mlp.up_proj") == 2
    assert bits("model.layers.1.mlp.up_proj") is None
    assert bits("model.layers.0.mlp.gate") is None
    assert bits("model.layers.0.self_attn.q_proj") is None
    assert bits("model.embed_tokens") is None
    assert bits("lm_head") is None


def test_what_is_not_needed() -> None:
    quantization = groups_of(group_0={"targets": ["Linear"], "weights": INT4})
    for name in ("input_scale", "input_global_scale", "k_scale", "v_zero_point", "output_scale"):
        assert quantization.is_extra(f"model.layers.0.self_attn.q_proj.{name}")
    assert quantization.is_extra("model.layers.0.x.weight_zero_point")  # of symmetric integers
    assert not quantization.is_extra("model.layers.0.x.weight_scale")
    asymmetric = groups_of(group_0={"targets": ["Linear"], "weights": {**INT4, "symmetric": False}})
    assert not asymmetric.is_extra("model.layers.0.x.weight_zero_point")


def test_groups_that_contradict_each_other() -> None:
    quantization = groups_of(
        group_0={"targets": ["Linear"], "weights": INT4},
        group_1={"targets": ["Linear"], "weights": INT8},
    )
    with pytest.raises(ValueError, match=r"group_0 and config group group_1 store model\.x"):
        quantization.format_of("model.x", 64, 64)


def test_dense_checkpoints_have_no_quantized_matrices() -> None:
    quantization = read({"config_groups": {}, "format": "dense", "sparsity_config": {}}, NO_FILES)
    assert quantization.format_of("model.layers.0.x", 64, 64) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_bits": 9}, "num_bits must be from 1 to 8, not 9"),
        ({"num_bits": True}, "num_bits must be from 1 to 8, not True"),
        ({"type": "bool"}, "type must be int or float, not 'bool'"),
        ({"type": "float"}, "pack-quantized cannot store weights of 4 bits and type float"),
        ({"type": "float", "symmetric": False}, "weights of type float must be symmetric"),
        ({"symmetric": 1}, "symmetric must be true or false, not 1"),
        ({"strategy": "token"}, "unknown strategy 'token' of weights; known: tensor, channel"),
        ({"strategy": "tensor_group"}, "pack-quantized cannot store weights of strategy tensor_g"),
        ({"strategy": "block", "block_structure": [128, 128]}, "cannot store weights of strategy"),
        (
            {"strategy": "block", "block_structure": [128]},
            r"must be \[rows, columns\], not \[128\]",
        ),
        ({"strategy": "block", "block_structure": "axb"}, "block_structure must be a positive int"),
        ({"strategy": "group", "group_size": None}, "group_size must be a positive integer, not N"),
        ({"strategy": "group", "group_size": 0}, "group_size must be a positive integer, not 0"),
        ({"dynamic": True}, "weights are never quantized dynamically"),
        ({"actorder": "column"}, "unknown actorder 'column'; known: group, weight"),
        ({"actorder": "group", "strategy": "channel"}, "actorder group needs pack-quantized"),
    ],
)
def test_invalid_weights_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"\Aconfig group group_0: .*{message}[^\n]*\Z"):
        checkpoint({**INT4, **changes}, "pack-quantized")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "marlin-24"}, "unknown format 'marlin-24'; known: pack-quantized, int-quant"),
        ({"format": "int-quantized", "config_groups": []}, None),
        ({"format": "nvfp4-pack-quantized"}, "stores floats of 4 bits with strategy tensor_group"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config group W4A16 must be an object"),
        (
            {"config_groups": {"a": {"targets": ["Linear"]}}},
            "config group a has neither weights no",
        ),
        ({"config_groups": {"a": {"weights": {}}}}, "config group a: targets must be a list of st"),
        ({"config_groups": [1]}, r"config_groups must be an object, not \[1\]"),
        ({"ignore": ["re:("]}, "ignore has '\\(', not a regular expression: missing \\), untermin"),
        ({"ignore": "lm_head"}, "ignore must be a list of strings, not 'lm_head'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparse-24-bitmask' is not suppo"),
        ({"transform_config": {"config_groups": {}}}, "transform_config is not supported"),
        ({"quantization_status": "half"}, "unknown quantization_status 'half'; known: initialized"),
    ],
)
def test_invalid_configurations_are_refused(changes: dict[str, Any], message: str | None) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": INT4}}
    config = {"config_groups": groups, "format": "pack-quantized", **changes}
    if message is None:
        assert read(config, NO_FILES).format_of("x", 4, 4) is None
        return
    with pytest.raises(ValueError, match=rf"{message}[^\n]*\Z"):
        read(config, NO_FILES)


def test_a_group_that_does_not_divide_the_columns() -> None:
    with pytest.raises(ValueError, match=r"model\.x: group_size 32 does not divide 40 columns"):
        checkpoint(INT4, "pack-quantized").format_of("model.x", 8, 40)


@pytest.mark.parametrize(
    ("suffix", "value", "message"),
    [
        (".weight_scale", float("nan"), "weight_scale has NaNs or infinite numbers"),
        (".weight_scale", float("inf"), "weight_scale has NaNs or infinite numbers"),
        (".weight_scale", 1e38, "weight_scale has huge numbers"),
        (".weight_g_idx", 2, "weight_g_idx has numbers outside 0 to 1"),
        (".weight_g_idx", -1, "weight_g_idx has numbers outside 0 to 1"),
        (".weight_shape", 7, r"weight_shape is \[7, 64\], should be \[8, 64\]"),
    ],
)
def test_invalid_values_are_refused(suffix: str, value: float, message: str) -> None:
    format_ = checkpoint({**INT4, "actorder": "group"}, "pack-quantized").format_of("x", 8, 64)
    assert format_ is not None
    tensors = {
        ".weight_packed": torch.zeros(8, 8, dtype=torch.int32),
        ".weight_scale": torch.ones(8, 2),
        ".weight_shape": torch.tensor([8, 64]),
        ".weight_g_idx": torch.arange(64, dtype=torch.int32) // 32,
    }
    matrix_of(format_, tensors)
    tensors[suffix].view(-1)[0] = value
    with pytest.raises(ValueError, match=message):
        format_.codes(tensors)
    with pytest.raises(ValueError, match=message):
        format_.dequantize(tensors)
