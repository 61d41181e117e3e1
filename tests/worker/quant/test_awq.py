"""AWQ matrices against an independent packer, and its configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.packing.checks import assert_exact
from support.packing.integers import (
    pack_awq_gemm,
    pack_awq_gemv,
    pack_awq_gemv_fast,
    random_integers,
)
from support.packing.marlin import pack_marlin
from taco_worker.quant.formats.awq import read
from taco_worker.quant.weight_format import WeightFormat

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
MODULE = "model.layers.0.mlp.up_proj"


def _format(n: int, k: int, **own: Any) -> WeightFormat:
    matrix = read({**CONFIG, **own}, Path()).format_of(MODULE, n, k)
    assert matrix is not None
    return matrix


@settings(deadline=None, max_examples=20)
@given(
    n=st.sampled_from([8, 40]),
    k=st.sampled_from([64, 192]),
    group=st.sampled_from([-1, 16, 32, 64]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_gemm(n: int, k: int, group: int, dtype: torch.dtype, seed: int) -> None:
    integers = random_integers(n, k, 4, k if group == -1 else group, seed=seed, dtype=dtype)
    assert_exact(_format(n, k, group_size=group), pack_awq_gemm(integers), integers.values)


@settings(deadline=None, max_examples=20)
@given(
    n=st.sampled_from([8, 13]),
    shape=st.sampled_from([(64, 32), (192, 64), (256, 128), (1152, 128), (512, 512), (320, 32)]),
    seed=st.integers(0, 9),
)
def test_gemv(n: int, shape: tuple[int, int], seed: int) -> None:
    k, group = shape
    integers = random_integers(n, k, 4, group, seed=seed)
    matrix = _format(n, k, version="GEMV", group_size=group)
    assert_exact(matrix, pack_awq_gemv(integers, group), integers.values)


@settings(deadline=None, max_examples=20)
@given(
    n=st.sampled_from([8, 12]),
    shape=st.sampled_from([(64, 32), (192, 64), (256, 128), (1152, 128)]),
    backend=st.sampled_from([{"version": "gemv_fast"}, {"backend": "llm-awq"}]),
    seed=st.integers(0, 9),
)
def test_gemv_fast(n: int, shape: tuple[int, int], backend: dict[str, str], seed: int) -> None:
    """Its kernel adds the rounded product of zero point and scale."""
    k, group = shape
    integers = random_integers(n, k, 4, group, seed=seed)
    stored = pack_awq_gemv_fast(integers, group)
    groups = torch.from_numpy(integers.group_of_column)
    scales = stored[".scales"].T.float()[:, groups]
    scaled_zeros = stored[".scaled_zeros"].T.float()[:, groups]
    values = torch.from_numpy(integers.codes).float() * scales + scaled_zeros
    assert_exact(_format(n, k, group_size=group, **backend), stored, values)


def test_marlin() -> None:
    integers = random_integers(64, 128, 4, 32, symmetric=True)
    stored = pack_marlin(integers)
    matrix = _format(64, 128, version="marlin", zero_point=False)
    renamed = {".qweight": stored[".B"], ".scales": stored[".s"]}
    assert_exact(matrix, renamed, integers.values)


def test_the_packer_knows_no_reader() -> None:
    """A known word: columns 0 to 7 with the codes 0 to 7, in AutoAWQ's order."""
    integers = random_integers(8, 32, 4, 32)
    integers.codes[:] = torch.arange(8)[:, None].numpy()
    assert pack_awq_gemm(integers)[".qweight"].flatten().tolist() == [0x75316420] * 32


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("gemm", ".scales"),
        ("gemv", ".scales"),
        ("gemv_fast", ".scales"),
        ("gemv_fast", ".scaled_zeros"),
    ],
)
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (float("nan"), "are not finite"),
        (float("inf"), "are not finite"),
        (float("-inf"), "are not finite"),
        (3e38, "are so large that products overflow"),
    ],
)
def test_scales_must_be_finite(version: str, name: str, number: float, message: str) -> None:
    integers = random_integers(8, 64, 4, 32)
    pack = {
        "gemm": lambda: pack_awq_gemm(integers),
        "gemv": lambda: pack_awq_gemv(integers, 32),
        "gemv_fast": lambda: pack_awq_gemv_fast(integers, 32),
    }
    stored = pack[version]()
    stored[name] = stored[name].bfloat16()
    stored[name][0, 0] = number
    with pytest.raises(ValueError, match=f"{name[1:]} {message}"):
        _format(8, 64, version=version).dequantize(stored)


@pytest.mark.parametrize("name", [".scales", ".scaled_zeros"])
def test_rows_that_pad_gemv_fast_may_hold_anything(name: str) -> None:
    """32 rows of scales are stored for 2 groups; the others belong to no column."""
    integers = random_integers(8, 64, 4, 32, seed=1)
    stored = pack_awq_gemv_fast(integers, 32)
    assert stored[name].shape == (32, 8)
    format_ = _format(8, 64, version="gemv_fast", group_size=32)
    values = format_.dequantize(stored)
    stored[name][2:] = float("nan")
    assert torch.equal(format_.dequantize(stored), values)
    stored[name][1, 7] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        format_.dequantize(stored)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"bits": 3}, "bits is 3; it must be 4"),
        ({"group_size": 0}, "group_size is 0; it must be -1 or a positive integer"),
        ({"group_size": None}, "quantization_config has no group_size"),
        ({"version": "exl2"}, "version is 'exl2'; it must be gemm or"),
        ({"version": 2}, "version is 2; it must be a text"),
        ({"zero_point": 0}, "zero_point is 0; it must be true or false"),
        ({"version": "marlin"}, "zero_point is true"),
        ({"modules_to_not_convert": {"a": 1}}, "modules_to_not_convert is .*; it must be a list"),
    ],
)
def test_invalid_configurations(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read({**CONFIG, **own}, Path())


@pytest.mark.parametrize(
    ("n", "k", "own", "message"),
    [
        (8, 80, {}, "AWQ cannot store 80 in features in groups of 32"),
        (12, 64, {}, "AWQ gemm cannot store 12 out features: it needs a multiple of 8"),
        (8, 64, {"version": "gemv", "group_size": 16}, "AWQ gemv cannot store groups of 16"),
        (6, 64, {"version": "gemv_fast"}, "cannot store 6 out features: it needs a multiple of 4"),
        (8, 96, {"version": "gemv_fast"}, "cannot store 96 in features: it needs a multiple of 64"),
        (64, 64, {"version": "marlin", "zero_point": False, "group_size": 128}, "groups of 128"),
        (32, 64, {"version": "marlin", "zero_point": False}, "Marlin cannot store a matrix of 64"),
    ],
)
def test_matrices_that_the_format_cannot_hold(
    n: int, k: int, own: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _format(n, k, **own)


def test_modules_that_are_not_converted() -> None:
    quantization = read({**CONFIG, "modules_to_not_convert": ["gate", "layers.1.mlp"]}, Path())
    assert quantization.format_of("model.layers.0.mlp.gate", 64, 64) is None
    assert quantization.format_of("model.layers.1.mlp.up_proj", 64, 64) is None
    assert quantization.format_of("model.layers.0.mlp.gate_proj", 64, 64) is not None
    assert quantization.format_of("model.layers.11.mlp.up_proj", 64, 64) is not None
    assert quantization.format_of("lm_head", 64, 64) is None
