"""Marlin and QQQ matrices against packers that follow the threads of their kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.packing.checks import assert_exact
from support.packing.integers import random_integers
from support.packing.marlin import (
    pack_marlin,
    pack_qqq_groups,
    pack_qqq_rows,
    pack_sparse_marlin,
    prune,
)
from taco_worker.quant.formats import gptq, qqq
from taco_worker.quant.weight_format import WeightFormat

MODULE = "model.layers.0.mlp.up_proj"
SHAPES = st.sampled_from([(64, 32, 32), (128, 128, 128), (192, 128, 64), (64, 256, 128)])


def _marlin(n: int, k: int, group_size: int) -> WeightFormat:
    config = {"quant_method": "marlin", "bits": 4, "group_size": group_size}
    matrix = gptq.read(config, Path()).format_of(MODULE, n, k)
    assert matrix is not None
    return matrix


def _sparse(n: int, k: int, group_size: int, bits: int) -> WeightFormat:
    config = {"quant_method": "gptq_marlin_24", "bits": bits, "group_size": group_size}
    matrix = gptq.read(config, Path()).format_of(MODULE, n, k)
    assert matrix is not None
    return matrix


def _qqq(n: int, k: int, group_size: int) -> WeightFormat:
    config = {"quant_method": "qqq", "wbits": 4, "group_size": group_size}
    matrix = qqq.read(config, Path()).format_of(MODULE, n, k)
    assert matrix is not None
    return matrix


@settings(deadline=None, max_examples=15)
@given(shape=SHAPES, by_row=st.booleans(), seed=st.integers(0, 9))
def test_marlin(shape: tuple[int, int, int], by_row: bool, seed: int) -> None:
    n, k, group = shape
    integers = random_integers(n, k, 4, k if by_row else group, seed=seed, symmetric=True)
    matrix = _marlin(n, k, -1 if by_row else group)
    assert_exact(matrix, pack_marlin(integers), integers.values)


@settings(deadline=None, max_examples=15)
@given(shape=SHAPES, by_row=st.booleans(), bits=st.sampled_from([4, 8]), seed=st.integers(0, 9))
def test_sparse_marlin(shape: tuple[int, int, int], by_row: bool, bits: int, seed: int) -> None:
    n, k, group = shape
    integers = random_integers(n, k, bits, k if by_row else group, seed=seed, symmetric=True)
    kept = prune(integers, seed)
    matrix = _sparse(n, k, -1 if by_row else group, bits)
    assert_exact(matrix, pack_sparse_marlin(integers, kept), integers.values)


@settings(deadline=None, max_examples=15)
@given(shape=SHAPES, seed=st.integers(0, 9))
def test_qqq_rows(shape: tuple[int, int, int], seed: int) -> None:
    n, k, _ = shape
    random = np.random.default_rng(seed)
    codes = random.integers(-7, 8, (n, k))
    scales = torch.from_numpy(random.uniform(0.001, 0.1, (n, 1))).float()
    values = torch.from_numpy(codes).float() * scales
    stored = pack_qqq_rows(codes, scales)
    assert_exact(_qqq(n, k, -1), stored, values)
    del stored[".s_group"]  # GPTQModel writes none
    assert_exact(_qqq(n, k, -1), stored, values)


@settings(deadline=None, max_examples=15)
@given(
    shape=st.sampled_from([(64, 64, 32), (128, 256, 128), (192, 128, 64)]), seed=st.integers(0, 9)
)
def test_qqq_groups(shape: tuple[int, int, int], seed: int) -> None:
    """The kernel adds 1152 in float16, where numbers from 1024 to 2048 are integers."""
    n, k, group = shape
    random = np.random.default_rng(seed)
    codes = random.integers(0, 16, (n, k))
    group_scales = torch.from_numpy(random.uniform(0.1, 15.8, (n, k // group))).half()
    row_scales = torch.from_numpy(random.uniform(0.001, 0.1, (n, 1))).float()
    of_column = group_scales.double().repeat_interleave(group, 1).numpy()
    integers = (((codes - 8) * of_column + 1152).astype(np.float16)).astype(np.float64) - 1152
    values = torch.from_numpy(integers).float() * row_scales
    assert_exact(_qqq(n, k, group), pack_qqq_groups(codes, group_scales, row_scales), values)


def test_rounding_of_halves_to_even() -> None:
    codes = np.tile(np.arange(16), (64, 4))
    scales = torch.full((64, 2), 0.5).half()
    stored = pack_qqq_groups(codes, scales, torch.ones(64, 1))
    rounded = [-4, -4, -3, -2, -2, -2, -1, 0, 0, 0, 1, 2, 2, 2, 3, 4]
    assert _qqq(64, 64, 32).dequantize(stored)[0, :16].tolist() == rounded


@pytest.mark.parametrize("name", [".s_channel", ".s_group"])
def test_scales_of_qqq_must_be_finite(name: str) -> None:
    codes = np.zeros((64, 64), np.int64)
    stored = pack_qqq_groups(codes, torch.ones(64, 2).half(), torch.ones(64, 1))
    stored[name][0, 5] = float("nan")
    with pytest.raises(ValueError, match=f"{name[1:]} are not finite"):
        _qqq(64, 64, 32).codes(stored)


def test_integers_of_qqq_must_fit_in_8_bits() -> None:
    codes = np.zeros((64, 64), np.int64)
    stored = pack_qqq_groups(codes, torch.full((64, 2), 20.0).half(), torch.ones(64, 1))
    with pytest.raises(ValueError, match="codes times s_group do not fit in 8 bits"):
        _qqq(64, 64, 32).dequantize(stored)


def test_values_of_marlin() -> None:
    stored = pack_marlin(random_integers(64, 64, 4, 32, symmetric=True))
    stored[".s"][1, 7] = float("inf")
    with pytest.raises(ValueError, match="scales are not finite"):
        _marlin(64, 64, 32).dequantize(stored)

    integers = random_integers(64, 64, 4, 32, symmetric=True)
    stored = pack_sparse_marlin(integers, prune(integers))
    stored[".B_meta"][0, 3] = 0
    with pytest.raises(ValueError, match="B_meta names the same column twice"):
        _sparse(64, 64, 32, 4).dequantize(stored)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _marlin(96, 64, 32), "Marlin cannot store a matrix of 64 in and 96 out features"),
        (lambda: _marlin(64, 40, -1), "tiles have 16 by 64"),
        (lambda: _marlin(64, 96, 64), "Marlin cannot store 96 in features in groups of 64"),
        (lambda: _sparse(64, 48, -1, 4), "tiles have 32 by 64"),
        (lambda: _sparse(64, 64, -1, 3), "bits is 3; it must be 4 or 8"),
        (lambda: _qqq(32, 64, -1), "QQQ cannot store a matrix of 64 in and 32 out features"),
        (lambda: _qqq(64, 96, 64), "QQQ cannot store 96 in features in groups of 64"),
        (lambda: _qqq(64, 96, 0), "group_size is 0; it must be -1 or a positive integer"),
    ],
)
def test_matrices_that_the_formats_cannot_hold(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("read", "config", "message"),
    [
        (gptq.read, {"quant_method": "marlin", "bits": 8}, "bits is 8; it must be 4"),
        (gptq.read, {"quant_method": "marlin", "bits": 4, "sym": False}, "Marlin checkpoints are"),
        (gptq.read, {"checkpoint_format": "marlin_24", "bits": 4, "sym": False}, "Marlin check"),
        (qqq.read, {"wbits": 8, "group_size": 128}, "wbits is 8; it must be 4"),
        (qqq.read, {"bits": 4, "sym": False}, "QQQ checkpoints are symmetric"),
    ],
)
def test_invalid_configurations(read: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(config, Path())


@pytest.mark.parametrize("method", ["marlin", "gptq_marlin_24", "qqq"])
def test_work_areas_of_kernels_are_not_needed(method: str) -> None:
    read = qqq.read if method == "qqq" else gptq.read
    quantization = read({"quant_method": method, "bits": 4, "group_size": 128}, Path())
    assert quantization.is_extra(f"{MODULE}.workspace")
    assert not quantization.is_extra(f"{MODULE}.bias")
