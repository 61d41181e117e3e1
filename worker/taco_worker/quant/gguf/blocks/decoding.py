"""Takes the blocks of GGUF's quantized types apart: codes, and the scales of their groups.

Scales are computed in float32 and in the order of gguf-py's `dequantize`, so that the values of the
codes have the same bits. Source: `dequantize_row_*` of ggml (`ggml-quants.c`), `gguf/quants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from taco_worker.quant.gguf.blocks.lattice_decoding import LATTICE_DECODERS
from taco_worker.quant.gguf.blocks.parts import (
    BlockSteps,
    Decoded,
    bits,
    halves,
    nibbles,
    of_steps,
    signed_bytes,
    words,
)


def decode(name: str, blocks: Tensor) -> Decoded:
    """The codes of blocks of a type.

    Args:
        name: of the type.
        blocks: uint8 [n, blocks of a row, bytes of a block].
    """
    return _DECODERS[name](blocks)


def _q4_0(blocks: Tensor) -> Decoded:
    return Decoded(nibbles(blocks[..., 2:]), halves(blocks, 0), zero=8)


def _q4_1(blocks: Tensor) -> Decoded:
    return Decoded(nibbles(blocks[..., 4:]), halves(blocks, 0), minima=-halves(blocks, 2))


def _q5_0(blocks: Tensor) -> Decoded:
    codes = nibbles(blocks[..., 6:]) | _column_bits(blocks[..., 2:6]) << 4
    return Decoded(codes.view(torch.int8) - 16, halves(blocks, 0))


def _q5_1(blocks: Tensor) -> Decoded:
    codes = nibbles(blocks[..., 8:]) | _column_bits(blocks[..., 4:8]) << 4
    minima = -halves(blocks, 2)
    return Decoded(codes.view(torch.int8), halves(blocks, 0), minima=minima)


def _q8_0(blocks: Tensor) -> Decoded:
    return Decoded(signed_bytes(blocks[..., 2:]), halves(blocks, 0))


def _q2_k(blocks: Tensor) -> Decoded:
    both = blocks[..., :16]
    steps = BlockSteps(both & 15, halves(blocks, 80), both >> 4, halves(blocks, 82))
    return of_steps(_pairs(blocks[..., 16:80]), steps)


def _q3_k(blocks: Tensor) -> Decoded:
    high_bits = (blocks[..., None, :32] >> bits(8)) & 1  # [n, b, 8, 32]
    codes = _pairs(blocks[..., 32:96]) | high_bits.flatten(-2) << 2
    low = nibbles(blocks[..., 96:104])
    high = (blocks[..., None, 104:108] >> bits(4, 2)) & 3
    scales = (low | high.flatten(-2) << 4).view(torch.int8) - 32
    return of_steps(codes, BlockSteps(scales, halves(blocks, 108)), zero=4)


def _q4_k(blocks: Tensor) -> Decoded:
    codes = nibbles(blocks[..., 16:].unflatten(-1, (4, 32)))
    return of_steps(codes.flatten(-2), _scales_and_minima(blocks))


def _q5_k(blocks: Tensor) -> Decoded:
    low = nibbles(blocks[..., 48:].unflatten(-1, (4, 32))).flatten(-2)
    high = (blocks[..., None, 16:48] >> bits(8)) & 1
    codes = low | high.flatten(-2) << 4
    return of_steps(codes.view(torch.int8), _scales_and_minima(blocks))


def _q6_k(blocks: Tensor) -> Decoded:
    low = nibbles(blocks[..., :128].unflatten(-1, (2, 64))).flatten(-2)
    codes = low | _pairs(blocks[..., 128:192]) << 4
    steps = BlockSteps(signed_bytes(blocks[..., 192:208]), halves(blocks, 208))
    return of_steps(codes.view(torch.int8) - 32, steps)


def _q8_k(blocks: Tensor) -> Decoded:
    return Decoded(signed_bytes(blocks[..., 4:260]), words(blocks, 0, 1, torch.float32))


def _tq1_0(blocks: Tensor) -> Decoded:
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8)[:, None]
    parts = (
        blocks[..., None, :32] * powers,  # the products lose their digits above 8 bits
        blocks[..., None, 32:48] * powers,
        blocks[..., None, 48:52] * powers[:4],
    )
    digits = torch.cat([part.flatten(-2) for part in parts], -1)
    codes = (digits.short() * 3 >> 8).to(torch.uint8)
    return Decoded(codes, halves(blocks, 52), zero=1)


def _tq2_0(blocks: Tensor) -> Decoded:
    return Decoded(_pairs(blocks[..., :64]), halves(blocks, 64), zero=1)


def _iq4_nl(blocks: Tensor) -> Decoded:
    return Decoded(nibbles(blocks[..., 2:]), halves(blocks, 0), table=_NONLINEAR)


def _iq4_xs(blocks: Tensor) -> Decoded:
    low = (blocks[..., 4:8, None] >> bits(2, 4, axis=0)) & 15  # [n, b, 4, 2]
    high = (words(blocks, 2, 1, torch.int16).int() >> torch.arange(0, 16, 2)) & 3
    scales = ((low.flatten(-2).int() | high << 4) - 32).to(torch.int8)
    codes = nibbles(blocks[..., 8:].unflatten(-1, (8, 16))).flatten(-2)
    return of_steps(codes, BlockSteps(scales, halves(blocks, 0)), table=_NONLINEAR)


def _mxfp4(blocks: Tensor) -> Decoded:
    exponents = blocks[..., :1].int()
    # Half of a power of two: the table has twice the numbers.
    patterns = torch.where(exponents < 2, 0x00200000 << exponents, (exponents - 1) << 23)
    return Decoded(nibbles(blocks[..., 1:]), patterns.view(torch.float32), table=_TWICE_FP4)


def _nvfp4(blocks: Tensor) -> Decoded:
    scales = blocks[..., :4]
    exponents, fractions = (scales >> 3 & 15).float(), (scales & 7).float()
    numbers = torch.where(
        exponents == 0, fractions * 2.0**-9, (1 + fractions / 8) * (exponents - 7).exp2()
    )
    codes = nibbles(blocks[..., 4:].unflatten(-1, (4, 8))).flatten(-2)
    return Decoded(codes, torch.where(scales == 0x7F, 0.0, numbers * 0.5), table=_TWICE_FP4)


def _pairs(part: Tensor) -> Tensor:
    """The four numbers of 2 bits of each byte, for each 32 bytes: all lowest ones first."""
    return ((part.unflatten(-1, (-1, 1, 32)) >> bits(4, 2)) & 3).flatten(-3)


def _column_bits(part: Tensor) -> Tensor:
    """A bit for each column."""
    return ((part[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2)


def _scales_and_minima(blocks: Tensor) -> BlockSteps:
    """Of 8 groups: 6 bits each of 12 bytes, times two factors of the block."""
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, third & 15 | first >> 2 & 48), -1)
    minima = torch.cat((second & 63, third >> 4 | second >> 2 & 48), -1)
    return BlockSteps(scales, halves(blocks, 0), minima, halves(blocks, 2))


_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_TWICE_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_DECODERS: Mapping[str, Callable[[Tensor], Decoded]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_K": _q8_k,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    **LATTICE_DECODERS,
}
