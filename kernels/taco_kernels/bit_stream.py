"""Codes of a few bits that are packed into words, the first one in the lowest bits."""

from __future__ import annotations

import torch
from torch import Tensor

_SLICE = 2**17  # bytes that are unpacked at once
# By bits of a code: the type with a byte for each code of a byte, and shifts with masks.
_SPREADING: dict[int, tuple[torch.dtype, tuple[tuple[int, int], ...]]] = {
    4: (torch.int16, ((4, 0x0F0F),)),
    2: (torch.int32, ((12, 0x000F000F), (6, 0x03030303))),
    1: (
        torch.int64,
        ((28, 0x0000000F0000000F), (14, 0x0003000300030003), (7, 0x0101010101010101)),
    ),
}


def unpack(words: Tensor, bits: int) -> Tensor:
    """The codes in the rows of `words`, as uint8.

    A code may begin in one word and end in the next: 32 codes of 3 bits fill three 32-bit words.

    Args:
        words: [..., w] of any integer type.
        bits: 1 to 8; the bits of a row are a multiple of it.

    Returns:
        uint8 [..., w * (bits of a word) / bits].
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    if 8 % bits == 0:
        return _spread(octets, bits)
    # `bits` bytes hold 8 codes
    parts = octets.unflatten(-1, (-1, bits)).long()
    joined = (parts << torch.arange(0, 8 * bits, 8)).sum(-1, keepdim=True)
    codes = ((joined >> torch.arange(0, 8 * bits, bits)) & (2**bits - 1)).to(torch.uint8)
    return codes.flatten(-2)


def _spread(octets: Tensor, bits: int) -> Tensor:
    """The codes of 1, 2 or 4 bits in each byte.

    Each byte becomes a wider number, in which halves of the codes move apart, again and again.
    Slices stay in the cache meanwhile.
    """
    wide, steps = _SPREADING[bits]
    codes = torch.empty(octets.shape, dtype=wide, device=octets.device)
    slices = zip(octets.view(-1).split(_SLICE), codes.view(-1).split(_SLICE), strict=True)
    for part, own in slices:
        own.copy_(part)
        for shift, mask in steps:
            own.bitwise_or_(own << shift).bitwise_and_(mask)
    return codes.view(torch.uint8)
