"""Takes the blocks of the IQ types apart, whose codes are rows of a lattice with signs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from taco_worker.quant.gguf.blocks.grids import even_signs, grid, signs
from taco_worker.quant.gguf.blocks.parts import Decoded, bits, halves, words


def _iq2_xxs(blocks: Tensor) -> Decoded:
    """For each 32 columns, 4 bytes of indices, then 4 times 7 bits of signs and 4 of scale."""
    both = blocks[..., 2:].unflatten(-1, (8, 8))
    info = words(both, 4, 1, torch.int32)
    scales = halves(blocks, 0) * (0.5 + _top_bits(info)) * 0.25
    return Decoded(_signed("IQ2_XXS", both[..., :4], _even_signs(info)), scales)


def _iq2_xs(blocks: Tensor) -> Decoded:
    both = words(blocks, 2, 32, torch.int16).int()
    scales = halves(blocks, 0) * (0.5 + _nibble_pairs(blocks[..., 66:]).float()) * 0.25
    return Decoded(_signed("IQ2_XS", both & 511, even_signs()[both >> 9 & 127]), scales)


def _iq2_s(blocks: Tensor) -> Decoded:
    high = (blocks[..., 66:74, None] >> bits(4, 2, axis=0)) & 3
    indices = blocks[..., 2:34].int() | high.flatten(-2).int() << 8
    scales = halves(blocks, 0) * (0.5 + _nibble_pairs(blocks[..., 74:]).float()) * 0.25
    return Decoded(_signed("IQ2_S", indices, signs()[blocks[..., 34:66].int()]), scales)


def _iq3_xxs(blocks: Tensor) -> Decoded:
    info = words(blocks, 66, 8, torch.int32)[..., None]
    scales = halves(blocks, 0) * (0.5 + _top_bits(info)) * 0.5
    return Decoded(_signed("IQ3_XXS", blocks[..., 2:66], _even_signs(info)), scales)


def _iq3_s(blocks: Tensor) -> Decoded:
    high = (blocks[..., 66:74, None] >> bits(8, axis=0)) & 1
    indices = blocks[..., 2:66].int() | high.flatten(-2).int() << 8
    scales = halves(blocks, 0) * (1 + 2 * _nibble_pairs(blocks[..., 106:]).float())
    return Decoded(_signed("IQ3_S", indices, signs()[blocks[..., 74:106].int()]), scales)


def _iq1_s(blocks: Tensor) -> Decoded:
    info = words(blocks, 34, 8, torch.int16).int()
    high = (info[..., None] >> torch.arange(0, 12, 3)) & 7
    indices = blocks[..., 2:34].int() | high.flatten(-2) << 8
    scales = halves(blocks, 0) * (2 * (info >> 12 & 7) + 1).float()
    is_below = (info >> 15 & 1)[..., None].expand(*info.shape, 4).flatten(-2)
    return Decoded(_shifted(indices, is_below), scales / 8)


def _iq1_m(blocks: Tensor) -> Decoded:
    info = words(blocks, 48, 4, torch.int16).int()
    # Four bits of each word are together a float16.
    pattern = ((info >> 12 & 15) << torch.arange(0, 16, 4)).sum(-1, keepdim=True)
    factor = pattern.to(torch.int16).view(torch.float16).float()
    steps = ((info[..., None] >> torch.arange(0, 12, 3)) & 7).flatten(-2)
    high = ((blocks[..., 32:48, None] >> bits(2, 4, axis=0)) & 15).flatten(-2).int()
    indices = blocks[..., :32].int() | (high & 7) << 8
    return Decoded(_shifted(indices, high >> 3), factor * (2 * steps + 1).float() / 8)


def _signed(name: str, indices: Tensor, factors: Tensor) -> Tensor:
    """Numbers of a grid times signs: int8 [n, b, 256]."""
    rows = grid(name)[indices.int()]
    return (rows.flatten(2) * factors.flatten(2)).contiguous()


def _shifted(indices: Tensor, is_below: Tensor) -> Tensor:
    """Eight times the numbers of the grid of -1, 0 and 1, shifted by an eighth: int8."""
    rows = grid("IQ1_S")[indices] * 8 + (1 - 2 * is_below[..., None]).to(torch.int8)
    return rows.flatten(2).contiguous()


def _top_bits(info: Tensor) -> Tensor:
    """The highest 4 of 32 bits, float32 [n, b, 8]."""
    return (info[..., 0] >> 28 & 15).float()


def _even_signs(info: Tensor) -> Tensor:
    return even_signs()[info >> torch.tensor([0, 7, 14, 21]) & 127]


def _nibble_pairs(part: Tensor) -> Tensor:
    """The low and the high 4 bits of each byte, side by side."""
    return ((part[..., None] >> bits(2, 4, axis=0)) & 15).flatten(-2)


LATTICE_DECODERS: Mapping[str, Callable[[Tensor], Decoded]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}
