"""Integers of 1 to 8 bits, packed without gaps into 32-bit words."""

from __future__ import annotations

import torch
from torch import Tensor


def num_words(count: int, bits: int) -> int:
    """Words of `count` integers."""
    return -(-count * bits // 32)


def unpack_words(words: Tensor, bits: int, count: int) -> Tensor:
    """The integers from 0 to 2 ** bits - 1 in rows of words: uint8 [rows, count].

    Integer i has the bits from i * bits on, counted from the lowest bit of the row's first word; it
    may begin in one word and end in the next.

    Args:
        words: int32 [rows, num_words(count, bits)].
    """
    octets = words.reshape(-1).view(torch.uint8).view(words.shape[0], -1)
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        parts = octets[..., None] >> shifts
        return (parts & ((1 << bits) - 1)).flatten(1)[:, :count]
    starts = torch.arange(count) * bits
    first = starts // 8
    # An integer of at most 8 bits lies in two adjacent bytes; the last one may have no second.
    padded = torch.nn.functional.pad(octets, (0, 1))
    pairs = padded[:, first].int() | (padded[:, first + 1].int() << 8)
    return ((pairs >> (starts % 8).int()) & ((1 << bits) - 1)).to(torch.uint8)
