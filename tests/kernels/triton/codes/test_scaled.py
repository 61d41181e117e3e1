"""Products of 8-bit floats by torch, whose activations a kernel rounds."""

from __future__ import annotations

import pytest
import torch

from support.random_codes import random_codes, shuffled_groups
from support.triton_interpreter import DEVICE
from taco_kernels.code_packing import pack
from taco_kernels.group_codes import GroupCodes
from taco_kernels.triton.codes.scaled import can_scale, multiplies_fp8, multiply_scaled, round_rows


@pytest.mark.parametrize("k", [16, 100, 5000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_are_rounded_as_torch_rounds(dtype: torch.dtype, k: int) -> None:
    x = (torch.randn(5, k) * 10).to(dtype).to(DEVICE)
    x[1], x[2, 3] = 0, 3000

    codes, scales = round_rows(x)

    wanted = (x.float().abs().amax(1, keepdim=True) / 448).clamp(min=1e-30)
    torch.testing.assert_close(scales, wanted, rtol=1e-6, atol=0)
    error = (codes.float() * scales - x.float()).abs()
    # Half a unit of the last of 3 bits, or of the least subnormal number.
    bound = torch.maximum(x.float().abs() * 2.0**-4, scales * 2.0**-10) * (1 + 1e-5)
    assert bool((error <= bound).all())


@pytest.mark.skipif(
    DEVICE.type == "cuda" and not multiplies_fp8(DEVICE), reason="the GPU has no such product"
)
@pytest.mark.parametrize("num_rows", [0, 1, 37])
def test_agrees_with_the_values(num_rows: int) -> None:
    weight = pack(random_codes("e4m3", 48, 192, 192), DEVICE)
    wide = torch.randn(num_rows, 300, device=DEVICE).bfloat16()
    x, bias = wide[:, 30:222], torch.randn(48, device=DEVICE).bfloat16()
    assert can_scale(x, weight)

    out = multiply_scaled(x, weight, bias)

    assert out.dtype == torch.bfloat16
    assert out.shape == (num_rows, 48)
    wanted = x.double() @ weight.values().double().T + bias.double()
    # Each activation is off by a sixteenth at most, and errors of both signs are added.
    magnitude = (x.double() ** 2 @ (weight.values().double() ** 2).T).sqrt()
    assert bool(((out.double() - wanted).abs() <= 0.2 * magnitude + 0.01 * wanted.abs()).all())


@pytest.mark.parametrize(
    ("codes", "dtype"),
    [
        (random_codes("int8", 48, 64, 64), torch.bfloat16),
        (random_codes("e4m3", 48, 64, 32), torch.bfloat16),
        (random_codes("e4m3", 48, 80, 80), torch.bfloat16),
        (random_codes("e4m3", 40, 64, 64), torch.bfloat16),
        (random_codes("e4m3", 48, 64, 64), torch.float16),
        (
            random_codes("e4m3", 48, 64, 32, group_of_column=shuffled_groups(64, 32)),
            torch.bfloat16,
        ),
    ],
)
def test_other_matrices_are_left_to_the_kernel(codes: GroupCodes, dtype: torch.dtype) -> None:
    assert not can_scale(torch.ones(3, codes.shape[1], dtype=dtype), pack(codes))


def test_no_cpu_is_asked() -> None:
    assert not multiplies_fp8(torch.device("cpu"))
