"""Checks and transposes codes as checkpoints store them (csrc/codes/)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taco_kernels.library import library


def transpose_nibbles(words: Tensor, rows: Sequence[int]) -> Tensor:
    """Words of eight columns from words of eight rows.

    Args:
        words: int32 [k, n / 8], each with the codes of eight rows at one column.
        rows: of eight, the row of each nibble of these words, from the lowest one on.

    Returns:
        int32 [n, k / 8] as a transposed view, as `GroupCodes.codes` are.

    Raises:
        ValueError: k is no multiple of 8.
    """
    k, count = words.shape
    if k % 8 or words.dtype != torch.int32 or sorted(rows) != list(range(8)):
        raise ValueError(f"words of {words.dtype} {[k, count]} with the rows {list(rows)}")
    source = words.contiguous()
    out = torch.empty(k // 8, count * 8, dtype=torch.int32)
    order = torch.tensor(rows, dtype=torch.int32)
    library().taco_transpose_nibbles(
        source.data_ptr(), count * 8, k, order.data_ptr(), out.data_ptr()
    )
    return out.T


def has_e4m3_nans(codes: Tensor) -> bool:
    """Whether one of the E4M3 floats with these bits, uint8, is NaN."""
    octets = codes.contiguous()
    if octets.dtype != torch.uint8:
        raise ValueError(f"bits of floats are uint8, not {octets.dtype}")
    return bool(library().taco_has_e4m3_nans(octets.data_ptr(), octets.numel()))
