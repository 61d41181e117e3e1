"""Packs integers as the writers of GPTQ, AWQ, Marlin and QQQ checkpoints do.

Written from the published layouts and kernels, by loops over what each word holds; the readers
view whole tensors instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Integers:
    """Random codes [n, k] with zero points and scales [n, groups], and the matrix that they are."""

    bits: int
    codes: NDArray[np.int64]
    zeros: NDArray[np.int64]
    scales: Tensor
    group_of_column: NDArray[np.int64]

    @property
    def values(self) -> Tensor:
        """float32 [n, k]; float32 holds the product of a code and a 16-bit float exactly."""
        groups = self.group_of_column
        differences = torch.from_numpy(self.codes - self.zeros[:, groups]).float()
        return differences * self.scales[:, torch.from_numpy(groups)].float()


def random_integers(
    n: int,
    k: int,
    bits: int,
    group: int,
    *,
    seed: int = 0,
    symmetric: bool = False,
    ordered_columns: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Integers:
    """Args: ordered_columns: columns are in groups by a random order ("desc_act")."""
    random = np.random.default_rng(seed)
    groups = -(-k // group)
    zeros = random.integers(0, 2**bits, (n, groups))
    if symmetric:
        zeros[:] = 2 ** (bits - 1)
    group_of_column = np.arange(k) // group
    if ordered_columns:
        group_of_column = group_of_column[random.permutation(k)]
    scales = torch.from_numpy(random.uniform(0.001, 0.1, (n, groups))).to(dtype)
    codes = random.integers(0, 2**bits, (n, k))
    return Integers(bits, codes, zeros, scales, group_of_column)


def bit_stream(codes: NDArray[np.int64], bits: int) -> Words:
    """Rows of codes as 32-bit words, the first code in the lowest bits, without gaps."""
    every_bit = (codes[..., None] >> np.arange(bits)) & 1
    octets = np.packbits(
        every_bit.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little"
    )
    return octets.view("<u4")


def words(values: Words) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).view(np.int32))


def pack_gptq(integers: Integers, *, v2: bool = False) -> dict[str, Tensor]:
    """AutoGPTQ's `pack`, with the zero points of `gptq` files (minus 1) or `gptq_v2` files."""
    zeros = integers.zeros if v2 else (integers.zeros - 1) % 2**integers.bits
    return {
        ".qweight": words(bit_stream(integers.codes, integers.bits).T),
        ".qzeros": words(bit_stream(zeros.T, integers.bits)),
        ".scales": integers.scales.T.contiguous(),
        ".g_idx": torch.from_numpy(integers.group_of_column).int(),
    }


_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ, WQLinear_GEMM


def pack_awq_gemm(integers: Integers) -> dict[str, Tensor]:
    return {
        ".qweight": words(_awq_words(integers.codes.T)),
        ".qzeros": words(_awq_words(integers.zeros.T)),
        ".scales": integers.scales.T.contiguous(),
    }


def _awq_words(columns: NDArray[np.int64]) -> Words:
    packed = np.zeros((columns.shape[0], columns.shape[1] // 8), np.uint32)
    for word in range(packed.shape[1]):
        for position, column in enumerate(_AWQ_ORDER):
            packed[:, word] |= columns[:, 8 * word + column].astype(np.uint32) << (4 * position)
    return packed


def _awq_group_words(k: int, group: int) -> int:
    """AutoAWQ's `calculate_zeros_width`."""
    multiple = 1 if group >= 128 else 128 // group
    zeros_of_words = 8 * multiple
    return (k // group + zeros_of_words - 1) // zeros_of_words * multiple


def pack_awq_gemv(integers: Integers, group: int) -> dict[str, Tensor]:
    n, k = integers.codes.shape
    padded = 8 * _awq_group_words(k, group)
    groups = integers.zeros.shape[1]
    zeros = np.zeros((n, padded), np.int64)
    zeros[:, :groups] = integers.zeros
    scales = torch.zeros((n, padded), dtype=integers.scales.dtype)
    scales[:, :groups] = integers.scales
    return {
        ".qweight": words(bit_stream(integers.codes, 4)),
        ".qzeros": words(bit_stream(zeros, 4)),
        ".scales": scales,
    }


def pack_awq_gemv_fast(integers: Integers, group: int) -> dict[str, Tensor]:
    """AutoAWQ's `pack_intweight` with four rows and blocks of 64 columns."""
    n, k = integers.codes.shape
    packed = np.zeros((n // 4, k), np.uint16)
    for block in range(k // 64):
        for row in range(4):
            for place in range(64):
                # Of 32 columns: pairs of each 8 first, then even columns before odd ones.
                pair, rest = divmod(place % 32, 8)
                odd, eight = divmod(rest, 4)
                column = 64 * block + place // 32 * 32 + 8 * eight + 2 * pair + odd
                nibble = 64 * row + place
                target = 64 * block + nibble // 4
                codes = integers.codes[row::4, column].astype(np.uint16)
                packed[:, target] |= codes << (4 * (nibble % 4))
    padded = 8 * _awq_group_words(k, group)
    groups = integers.zeros.shape[1]
    scales = torch.zeros((padded, n), dtype=torch.float16)
    scales[:groups] = integers.scales.T
    scaled_zeros = torch.zeros((padded, n), dtype=torch.float16)
    products = integers.scales.float() * torch.from_numpy(integers.zeros).float()
    scaled_zeros[:groups] = -products.T.half()
    return {
        ".qweight": torch.from_numpy(packed.view(np.int16)),
        ".scales": scales,
        ".scaled_zeros": scaled_zeros,
    }
