"""Reference of rotary position embedding (RoFormer, Su et al. 2021) of a part of each head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

RotaryStyle = Literal["half", "interleaved"]
ROTARY_STYLES: tuple[RotaryStyle, ...] = ("half", "interleaved")


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, *, offset: int = 0, style: RotaryStyle = "half"
) -> Tensor:
    """Rotate numbers offset to offset + rotary_dim - 1 of each head by its token's angles.

    Args:
        x: [num_tokens, num_heads, head_dim].
        cos, sin: float32 [num_tokens, rotary_dim / 2].
        offset: first rotated number of a head.
        style: pairs are (i, i + rotary_dim / 2) as in GPT-NeoX, or (2i, 2i + 1) as in GPT-J.
    """
    rotary_dim = 2 * cos.shape[-1]
    before, turned, after = x.split((offset, rotary_dim, x.shape[-1] - offset - rotary_dim), dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if style == "half":
        first, second = turned.float().chunk(2, dim=-1)
    else:
        first, second = turned.float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = (first * cos - second * sin, second * cos + first * sin)
    rotated = torch.cat(pairs, dim=-1) if style == "half" else torch.stack(pairs, -1).flatten(-2)
    return torch.cat((before, rotated.to(x.dtype), after), dim=-1)


def gather_angles(
    cos_sin: Tensor, positions: Tensor, sections: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each token, float32 [num_tokens, rotary_dim / 2] each.

    Args:
        cos_sin: float32 [max_positions, rotary_dim], cosines before sines.
        positions: [num_tokens]; with sections [len(sections), num_tokens], one row per axis.
        sections: consecutive pairs that each axis turns (M-RoPE, Qwen2-VL, Wang et al. 2024); their
            sum is rotary_dim / 2.
    """
    cos, sin = cos_sin[positions].chunk(2, dim=-1)
    if not sections:
        return cos, sin
    return _by_axis(cos, sections), _by_axis(sin, sections)


def _by_axis(angles: Tensor, sections: Sequence[int]) -> Tensor:
    """[axes, num_tokens, rotary_dim / 2] to each axis's own pairs."""
    parts = angles.split(tuple(sections), dim=-1)
    return torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
