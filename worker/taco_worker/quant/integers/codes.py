"""`GroupCodes` of unsigned integers with scales and zero points, and checks of their values."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.group_codes import GroupCodes
from taco_worker.quant.encodings.small_floats import LARGEST_SCALE
from taco_worker.quant.weight_format import CodeLayout


def integer_codes(
    codes: Tensor,
    zeros: Tensor,
    scales: Tensor,
    *,
    bits: int,
    layout: CodeLayout,
    group_of_column: Tensor | None = None,
) -> GroupCodes:
    """The matrix (codes - zeros) * scales, of codes from 0 to 2**bits - 1.

    Args:
        codes: uint8 [n, k]; or as words, as of `GroupCodes`, if the layout is of 4 bits.
        zeros: integers [n, groups].
        scales: [n, groups] of a floating-point type.
        layout: of `integer_layout`.
        group_of_column: int32 [k], as of `GroupCodes`.

    Raises:
        ValueError: scales are not finite, or zero points differ from 128 though 8-bit codes have
            none.
    """
    numbers = finite(scales, "scales")
    if layout.kind == "int4":
        zeros = zeros.to(torch.int16).contiguous()
        return GroupCodes(
            "int4", codes, layout.group, numbers, zeros, group_of_column=group_of_column
        )
    middle = 2 ** (bits - 1)
    signed = (codes ^ middle).view(torch.int8)  # the difference from 128, in two's complement
    shifted = zeros.to(torch.int16).contiguous() - middle
    if not layout.has_zeros and shifted.any():
        raise ValueError("zero points are not symmetric; set sym to false in the configuration")
    return GroupCodes(
        "int8",
        signed,
        layout.group,
        numbers,
        shifted if layout.has_zeros else None,
        group_of_column=group_of_column,
    )


def symmetric_codes(codes: Tensor, scales: Tensor, *, bits: int, layout: CodeLayout) -> GroupCodes:
    """`integer_codes` whose zero points are half of the codes' range."""
    zeros = torch.full(scales.shape, 2 ** (bits - 1), dtype=torch.int16)
    return integer_codes(codes, zeros, scales, bits=bits, layout=layout)


def finite(numbers: Tensor, name: str) -> Tensor:
    """Scales, or products of scales and zero points, as contiguous float32.

    Raises:
        ValueError: one of them is not finite, or so large that products overflow.
    """
    values = numbers.float().contiguous()
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} are not finite")
    if not bool((values.abs() < LARGEST_SCALE).all()):
        raise ValueError(f"{name} are so large that products overflow")
    return values
