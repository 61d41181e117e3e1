"""Quantized matrices: gguf-py's, or random blocks of the types that it cannot write."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

# Bytes of a block's float16 scales.
SCALES_AT = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
_CAN_WRITE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")


def random_blocks(name: str, n: int, num_blocks: int, seed: int) -> np.ndarray:
    """uint8 [n, num_blocks * size of a block] with finite scales."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, (n, num_blocks, size), dtype=np.uint8)
    for start in SCALES_AT.get(name, ()):
        data[..., start + 1] &= 0xBF  # exponents of at most 15: below 2
    if name == "Q8_K":
        data[..., 3] &= 0xBF
    if name == "IQ1_M":  # the exponent's top bits are in the last of its four words
        data[..., 55] &= 0xBF
    if name == "MXFP4":
        data[..., 0] %= 250
    return data.reshape(n, -1)


def quantized(matrix: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The blocks of a matrix [..., k], and the values that they have.

    Of types that gguf-py cannot write, both are random numbers with the deviation of the matrix.
    """
    kind = GGMLQuantizationType[name]
    if name in _CAN_WRITE:
        data = quantize(matrix, kind)
        return data, dequantize(data, kind)
    columns, size = GGML_QUANT_SIZES[kind]
    rows = int(np.prod(matrix.shape[:-1]))
    num_blocks = matrix.shape[-1] // columns
    data = random_blocks(name, rows, num_blocks, rows).reshape(rows, num_blocks, size)
    for factor in (1.0, matrix.std()):  # the first gives the deviation of the codes
        if factor != 1.0:
            factor /= dequantize(data.reshape(rows, -1), kind).std()
        for start in SCALES_AT[name]:
            data[..., start : start + 2] = np.frombuffer(np.float16(factor).tobytes(), np.uint8)
    data = data.reshape(*matrix.shape[:-1], -1)
    return data, dequantize(data.reshape(rows, -1), kind).reshape(matrix.shape)
