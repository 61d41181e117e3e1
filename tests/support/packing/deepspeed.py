"""DeepSpeed's `FP_Quantize`, number by number on the bits of floats.

Source: `apply_quantization` and `apply_dequantization` of DeepSpeed's
`csrc/fp_quantizer/fp_quantize.cu`, with rounding to nearest.
"""

import struct

import torch
from torch import Tensor

_GREATEST = {6: 28.0, 8: 480.0}
_MANTISSA_BITS = {6: 2, 8: 3}


def _single(number: float) -> float:
    """Rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def _code(number: float, bits: int) -> int:
    """The stored code of a scaled number that is not 0."""
    (word,) = struct.unpack("<I", struct.pack("<f", number))
    sign, exponent, mantissa = word >> 31, word >> 23 & 0xFF, word & 0x7FFFFF
    mantissa_bits = _MANTISSA_BITS[bits]
    exponent_bits = bits - mantissa_bits - 1
    dropped = 23 - mantissa_bits
    mantissa += 1 << (dropped - 1)
    exponent += mantissa >> 23
    if exponent < 128 - (2 ** (exponent_bits - 1) - 1):
        exponent, mantissa = 128 - (2 ** (exponent_bits - 1) - 1), 0
    kept = mantissa >> dropped & (2**mantissa_bits - 1)
    field = exponent - 127 + 2 ** (exponent_bits - 1) - 1
    assert 0 < field < 2**exponent_bits
    return sign << (bits - 1) | field << mantissa_bits | kept


def _number(code: int, bits: int) -> float:
    mantissa_bits = _MANTISSA_BITS[bits]
    exponent_bits = bits - mantissa_bits - 1
    sign = -1.0 if code >> (bits - 1) else 1.0
    field = code >> mantissa_bits & (2**exponent_bits - 1)
    mantissa = 1 + (code & (2**mantissa_bits - 1)) / 2**mantissa_bits
    return sign * mantissa * 2.0 ** (field - (2 ** (exponent_bits - 1) - 1))


def rounded(weight: Tensor, bits: int, group_size: int) -> Tensor:
    """The numbers that DeepSpeed makes of a matrix without zeros, before it rounds to bfloat16."""
    numbers = weight.float().flatten().tolist()
    values: list[float] = []
    for start in range(0, len(numbers), group_size):
        group = numbers[start : start + group_size]
        greatest = max(map(abs, group))
        factor, scale = _single(_GREATEST[bits] / greatest), _single(greatest / _GREATEST[bits])
        for number in group:
            code = _code(_single(number * factor), bits)
            values.append(_single(_number(code, bits) * scale))
    return torch.tensor(values).view(weight.shape)
