"""Conversions and reductions of the C++ library, alone."""

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.communicators import values
from taco_train.collective import library
from taco_train.collective.library import REDUCTIONS, TYPES


def convert(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(tensor.shape, dtype=dtype)
    library.load().taco_collective_convert(
        TYPES[dtype], out.data_ptr(), TYPES[tensor.dtype], tensor.data_ptr(), tensor.numel()
    )
    return out


def convert_portably(tensor: Tensor) -> Tensor:
    narrows = tensor.dtype == torch.float32
    out = torch.empty(tensor.shape, dtype=torch.float16 if narrows else torch.float32)
    library.load().taco_collective_portable_float16(
        narrows, out.data_ptr(), tensor.data_ptr(), tensor.numel()
    )
    return out


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def all_16_bit(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def near_every_float16() -> Tensor:
    """float32 values at, between and around all float16 values, and random bits."""
    halves = all_16_bit(torch.float16).float()
    around = [bits(halves) + step for step in (-4097, -4096, -4095, -1, 0, 1, 4095, 4096, 4097)]
    random = torch.randint(-(2**31), 2**31, (200_003,), dtype=torch.int64).to(torch.int32)
    return torch.cat([*around, random]).view(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conversions_agree_with_torch(dtype: torch.dtype) -> None:
    for tensor, other in ((all_16_bit(dtype), torch.float32), (near_every_float16(), dtype)):
        found, expected = convert(tensor, other), tensor.to(other)
        is_nan = tensor.isnan()
        assert torch.equal(found.isnan(), is_nan)
        assert torch.equal(bits(found)[~is_nan], bits(expected)[~is_nan])


def test_portable_conversions_give_the_bits_of_the_processor() -> None:
    for tensor in (all_16_bit(torch.float16), near_every_float16()):
        other = torch.float32 if tensor.dtype == torch.float16 else torch.float16
        assert torch.equal(bits(convert_portably(tensor)), bits(convert(tensor, other)))


@settings(max_examples=150, deadline=None)
@given(
    dtype=st.sampled_from(list(TYPES)),
    op=st.sampled_from(["sum", "min", "max", "product"]),
    num_inputs=st.integers(1, 5),
    count=st.integers(0, 9000),
)
def test_reductions_are_those_of_torch_in_order(
    dtype: torch.dtype, op: str, num_inputs: int, count: int
) -> None:
    inputs = [values(rank, (count,), dtype, op) for rank in range(num_inputs)]
    is_half = dtype in (torch.float16, torch.bfloat16)
    wide = [tensor.float() for tensor in inputs] if is_half else inputs
    expected = wide[0]
    for tensor in wide[1:]:
        if dtype == torch.bool:
            expected = expected | tensor if op in ("sum", "max") else expected & tensor
        elif op in ("min", "max"):
            expected = (torch.minimum if op == "min" else torch.maximum)(expected, tensor)
        else:
            expected = expected + tensor if op == "sum" else expected * tensor
    out = torch.empty_like(wide[0])
    result = torch.empty_like(inputs[0])
    library.load().taco_collective_reduce(
        TYPES[dtype],
        REDUCTIONS[op],
        out.data_ptr(),
        (ctypes.c_void_p * num_inputs)(*(tensor.data_ptr() for tensor in inputs)),
        num_inputs,
        count,
        0,
        result.data_ptr(),
    )
    assert torch.equal(out, expected)
    assert torch.equal(result, expected.to(dtype))
