"""Floats of 4 to 8 bits, and the scales of groups of them (OCP Microscaling Formats 1.0).

E2M1, E2M3 and E4M3 have a sign and the named bits of exponent and mantissa; E8M0 is a power of 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.native.stored_codes import has_e4m3_nans

_POSITIVE_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_POSITIVE_E2M1, *(-number for number in _POSITIVE_E2M1))
"""The 4-bit floats, by their codes."""

_POSITIVE_E2M3 = (*range(8), *((8 + i) << e for e in range(3) for i in range(8)))
E2M3_EIGHTHS = (*_POSITIVE_E2M3, *(-number for number in _POSITIVE_E2M3))
"""The 6-bit floats times 8, by their codes."""


def positive_floats(exponent_bits: int, mantissa_bits: int) -> tuple[float, ...]:
    """The numbers from 0 on that such bits mean, by their codes, without infinities and NaN."""
    bias = 2 ** (exponent_bits - 1) - 1
    steps = 2**mantissa_bits
    return tuple(
        (mantissa + (steps if exponent else 0)) * 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        for exponent in range(2**exponent_bits)
        for mantissa in range(steps)
    )


LARGEST_SCALE = 2.0**118
"""Scales below it have finite products with all numbers."""

_E8M0_NAN = 255


def decode_scales(name: str, scales: Tensor) -> Tensor:
    """Scales as float32. Bytes are E8M0.

    Raises:
        ValueError: a scale is NaN, infinite, or so large that products overflow.
    """
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        exponents = scales.view(torch.uint8)
        if bool((exponents == _E8M0_NAN).any()):
            raise ValueError(f"{name} has NaNs")
        numbers = _powers(exponents)
    else:
        numbers = scales.float()
    return checked_scales(name, numbers)


def checked_scales(name: str, scales: Tensor) -> Tensor:
    """`scales`, float32.

    Raises:
        ValueError: as `decode_scales`.
    """
    if not bool((scales.abs() < LARGEST_SCALE).all()):
        what = "NaNs or infinite numbers" if not scales.isfinite().all() else "huge numbers"
        raise ValueError(f"{name} has {what}")
    return scales


def e4m3_codes(name: str, floats: Tensor) -> Tensor:
    """The bytes of E4M3 floats.

    Raises:
        ValueError: a float is NaN (0x7f or 0xff).
    """
    codes = floats.view(torch.uint8)
    if has_e4m3_nans(codes):
        raise ValueError(f"{name} has NaNs")
    return codes


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Codes [..., 2k] from bytes [..., k], the even code in a byte's low bits."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def _powers(exponents: Tensor) -> Tensor:
    """2 ** (exponent - 127), by the bits of float32: exact for the subnormal 2 ** -127 too."""
    bits = exponents.int() << 23
    return torch.where(exponents == 0, 1 << 22, bits).view(torch.float32)
