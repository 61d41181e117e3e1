"""The numbers that codes mean, in registers: exact in the type of the activations.

16-bit floats are put together from their bits, which takes fewer instructions than conversions of
integers: 1024 + code in float16, and 128 + code in bfloat16, have the code as their last bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

# 2 to the difference of the exponent biases of bfloat16 or float32 (127), and of e4m3 or e2m1.
_E4M3_FACTOR = tl.constexpr(2.0**120)
_E2M1_FACTOR = tl.constexpr(2.0**126)


@triton.jit
def numbers_of_4_bits(codes, table, KIND: tl.constexpr, ZERO: tl.constexpr, dtype: tl.constexpr):
    """Of uint8 codes from 0 to 15, less ZERO."""
    if KIND == "table16":
        numbers = tl.load(table + codes.to(tl.int32)).to(dtype)
    elif KIND == "e2m1":
        # As of e4m3 below.
        if dtype == tl.float16:
            wide = codes.to(tl.uint16)
            bits = (wide & 7) << 9 | (wide & 8) << 12
            numbers = bits.to(tl.float16, bitcast=True) * 16384.0
        elif dtype == tl.bfloat16:
            wide = codes.to(tl.uint16)
            bits = (wide & 7) << 6 | (wide & 8) << 12
            numbers = bits.to(tl.bfloat16, bitcast=True) * _E2M1_FACTOR
        else:
            wide = codes.to(tl.uint32)
            bits = (wide & 7) << 22 | (wide & 8) << 28
            numbers = bits.to(tl.float32, bitcast=True) * _E2M1_FACTOR
    else:
        tl.static_assert(KIND == "int4")
        if dtype == tl.float16:
            bits = codes.to(tl.int16) | 0x6400
            numbers = bits.to(tl.float16, bitcast=True) - (1024.0 + ZERO)
        elif dtype == tl.bfloat16:
            bits = codes.to(tl.int16) | 0x4300
            numbers = bits.to(tl.bfloat16, bitcast=True) - (128.0 + ZERO)
        else:
            numbers = codes.to(tl.float32) - ZERO
    return numbers


@triton.jit
def numbers_of_8_bits(codes, KIND: tl.constexpr, ZERO: tl.constexpr, dtype: tl.constexpr):
    """Of uint8 codes, less ZERO."""
    if KIND == "int8":
        if dtype == tl.float16:
            bits = (codes ^ 0x80).to(tl.int16) | 0x6400
            numbers = bits.to(tl.float16, bitcast=True) - (1024.0 + 128.0 + ZERO)
        else:
            numbers = (codes.to(tl.int8, bitcast=True).to(tl.float32) - ZERO).to(dtype)
    else:
        tl.static_assert(KIND == "e4m3")
        # The fields of e4m3 at the ends of those of the wider type; a factor mends the exponent.
        if dtype == tl.float16:
            wide = codes.to(tl.uint16)
            bits = (wide & 0x7F) << 7 | (wide & 0x80) << 8
            numbers = bits.to(tl.float16, bitcast=True) * 256.0
        elif dtype == tl.bfloat16:
            wide = codes.to(tl.uint16)
            bits = (wide & 0x7F) << 4 | (wide & 0x80) << 8
            numbers = bits.to(tl.bfloat16, bitcast=True) * _E4M3_FACTOR
        else:
            wide = codes.to(tl.uint32)
            bits = (wide & 0x7F) << 20 | (wide & 0x80) << 24
            numbers = bits.to(tl.float32, bitcast=True) * _E4M3_FACTOR
    return numbers
