"""DeepSpeed's floats: the numbers of its kernel, made at load from an unquantized checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.packing.deepspeed import rounded
from taco_worker.quant.formats.deepspeedfp import RoundedMatrix, read

MODULE = "model.layers.0.mlp.up_proj"


def matrix(n: int, k: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Numbers of many magnitudes, and none of them 0."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-12, 4, (n, k), generator=generator).float()
    numbers = torch.randn(n, k, generator=generator) * exponents.exp2()
    return (numbers + 2**-20 * (numbers == 0)).to(dtype)


@settings(deadline=None, max_examples=40)
@given(
    bits=st.sampled_from([6, 8]),
    n=st.integers(1, 6),
    k=st.sampled_from([32, 64, 96, 128]),
    group_size=st.sampled_from([32, 64, 128, 512]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    seed=st.integers(0, 2**31),
)
def test_numbers_are_those_of_deepspeed(
    bits: int, n: int, k: int, group_size: int, dtype: torch.dtype, seed: int
) -> None:
    weight = matrix(n, k, seed, dtype)
    format_ = RoundedMatrix(n, k, bits, group_size)
    assert dict(format_.tensors)[".weight"].shape == (n, k)

    values = format_.dequantize({".weight": weight})

    assert torch.equal(values, rounded(weight, bits, group_size))
    assert (format_.layout is None) == (bits == 8)
    if format_.layout is not None:
        codes = format_.codes({".weight": weight})
        assert torch.equal(codes.values(), values)
        assert codes.group == format_.layout.group


@pytest.mark.parametrize("bits", [6, 8])
def test_zeros_stay_zeros(bits: int) -> None:
    weight = torch.zeros(2, 64)
    weight[0, 5] = -3.0
    values = RoundedMatrix(2, 64, bits, 64).dequantize({".weight": weight})
    assert torch.equal(values, weight)


def test_groups_that_cross_rows_unevenly_have_no_codes() -> None:
    assert RoundedMatrix(4, 33, 6, 512).layout is None


def test_only_linear_layers_are_rounded(tmp_path: Path) -> None:
    quantization = read({"bits": 6, "group_size": 128}, tmp_path)
    assert quantization.format_of(MODULE, 8, 256) == RoundedMatrix(8, 256, 6, 128)
    for module in ("lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"):
        assert quantization.format_of(module, 8, 256) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"bits": 4, "group_size": 128}, "bits of deepspeedfp must be 6 or 8, not 4"),
        ({"bits": True, "group_size": 128}, "not True"),
        ({"bits": 6}, "group_size of deepspeedfp must be 1 to 16777216, not None"),
        ({"bits": 6, "group_size": 0}, "group_size of deepspeedfp must be 1 to 16777216, not 0"),
        ({"bits": 6, "group_size": 10**12}, "must be 1 to 16777216, not 1000000000000"),
    ],
)
def test_invalid_settings_are_one_error(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(content, tmp_path)


def test_numbers_that_are_not_finite_are_an_error() -> None:
    weight = matrix(2, 64)
    weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="numbers are not finite"):
        RoundedMatrix(2, 64, 6, 64).dequantize({".weight": weight})
