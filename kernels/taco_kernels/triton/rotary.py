"""Rotary position embedding of heads, in place.

Reference: `taco_kernels.reference.rotary` (RoFormer, Su et al. 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.reference.rotary import ROTARY_STYLES, RotaryStyle

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_AXES = 3
# Up to this many tokens a program takes few heads, so that there are more programs.
_FEW_TOKENS = 64


def rotate(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    *,
    offset: int = 0,
    style: RotaryStyle = "half",
    sections: Sequence[int] = (),
) -> None:
    """Rotate `rotary_dim` numbers of each head, from `offset` on, by its token's angles.

    Args:
        x: [num_tokens, num_heads, head_dim]; the last stride must be 1.
        positions: int32 or int64 [num_tokens]; with sections [len(sections), num_tokens], one row
            per axis (M-RoPE).
        cos_sin: float32 [max_positions, rotary_dim], cosines in the first half and sines in the
            second.
        style: pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1) if interleaved.
        sections: consecutive pairs that each axis turns, up to three; their sum is rotary_dim / 2.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    check_heads("x", x, x)
    check_angles(x, positions, cos_sin, offset, style, sections)
    num_tokens, num_heads, _ = x.shape
    if num_tokens == 0:
        return
    heads, num_warps = heads_per_program(num_tokens, num_heads, cos_sin.shape[1] // 2)
    _rotate_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        x,
        positions,
        cos_sin,
        positions.stride(0),
        *x.stride()[:2],
        NUM_HEADS=num_heads,
        HEADS=heads,
        **pair_options(cos_sin, offset, style, sections),
        num_warps=num_warps,
    )


def heads_per_program(num_tokens: int, num_heads: int, half: int) -> tuple[int, int]:
    """Heads that one program rotates, and its warps."""
    pairs, num_warps = (256, 1) if num_tokens <= _FEW_TOKENS else (1024, 4)
    heads = max(1, pairs // triton.next_power_of_2(half))
    return min(heads, triton.next_power_of_2(num_heads)), num_warps


def pair_options(
    cos_sin: Tensor, offset: int, style: RotaryStyle, sections: Sequence[int]
) -> dict[str, int]:
    """The constants that `rotated` takes. Pair i is at OFFSET + i * STEP, and DISTANCE behind."""
    half = cos_sin.shape[1] // 2
    first_ends = [sum(sections[: axis + 1]) for axis in range(_MAX_AXES - 1)]
    return {
        "HALF": half,
        "HALF_BLOCK": triton.next_power_of_2(half),
        "OFFSET": offset,
        "STEP": 1 if style == "half" else 2,
        "DISTANCE": half if style == "half" else 1,
        "NUM_AXES": max(1, len(sections)),
        "FIRST_END": first_ends[0],
        "SECOND_END": first_ends[1],
    }


def check_heads(name: str, heads: Tensor, query: Tensor) -> None:
    """Raise ValueError unless `heads` are heads of the query's tokens, dtype and head_dim."""
    if (
        heads.dtype not in _DTYPES
        or heads.dim() != 3
        or heads.dtype != query.dtype
        or heads.shape[::2] != query.shape[::2]
        or heads.stride(2) != 1
    ):
        raise ValueError(
            f"{name} must be float16, bfloat16 or float32 [num_tokens, heads, head_dim] with "
            f"adjacent numbers, and like the query {query.dtype} {list(query.shape)}, not "
            f"{heads.dtype} {list(heads.shape)} with strides {heads.stride()}"
        )


def check_angles(
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    offset: int,
    style: RotaryStyle,
    sections: Sequence[int],
) -> None:
    """Raise ValueError unless the positions, the table and the options fit to the heads x."""
    num_tokens, _, head_dim = x.shape
    if style not in ROTARY_STYLES:
        raise ValueError(f"unknown rotary style {style!r}; known: {', '.join(ROTARY_STYLES)}")
    shape = (len(sections), num_tokens) if sections else (num_tokens,)
    if (
        positions.dtype not in (torch.int32, torch.int64)
        or positions.shape != shape
        or positions.stride(-1) != 1
    ):
        raise ValueError(
            f"positions must be int32 or int64 {list(shape)} with adjacent numbers, not "
            f"{positions.dtype} {list(positions.shape)}"
        )
    if (
        cos_sin.dtype != torch.float32
        or cos_sin.dim() != 2
        or not 0 < cos_sin.shape[1] <= head_dim - offset
        or offset < 0
        or cos_sin.shape[1] % 2
        or not cos_sin.is_contiguous()
    ):
        raise ValueError(
            f"cos_sin must be contiguous float32 [max_positions, rotary_dim], rotary_dim even and "
            f"at most {head_dim} - offset {offset}, not {cos_sin.dtype} {list(cos_sin.shape)}"
        )
    half = cos_sin.shape[1] // 2
    if sections and (len(sections) > _MAX_AXES or min(sections) < 0 or sum(sections) != half):
        raise ValueError(
            f"sections must be up to {_MAX_AXES} numbers that sum to rotary_dim / 2 = {half}, not "
            f"{list(sections)}"
        )


@triton.jit
def rotated(
    x,
    head_stride,
    heads,
    positions,
    positions_axis,
    cos_sin,
    NUM_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    OFFSET: tl.constexpr,
    STEP: tl.constexpr,
    DISTANCE: tl.constexpr,
    NUM_AXES: tl.constexpr,
    FIRST_END: tl.constexpr,
    SECOND_END: tl.constexpr,
):
    """Return both numbers of the pairs of some heads of one token, rotated, in x's dtype.

    Also the offsets of the first ones in a head, and the mask of pairs that exist. `positions`
    points to the token's position on the first axis.
    """
    pairs = tl.arange(0, HALF_BLOCK)[None, :]
    mask = (heads < NUM_HEADS) & (pairs < HALF)
    if NUM_AXES == 1:
        position = tl.load(positions).to(tl.int64)
    else:
        axes = (pairs >= FIRST_END).to(tl.int64)
        if NUM_AXES > 2:
            axes += (pairs >= SECOND_END).to(tl.int64)
        position = tl.load(positions + axes * positions_axis, mask=pairs < HALF).to(tl.int64)
    angles = cos_sin + position * (2 * HALF)
    cos = tl.load(angles + pairs, mask=pairs < HALF, other=0.0)
    sin = tl.load(angles + HALF + pairs, mask=pairs < HALF, other=0.0)
    places = OFFSET + pairs * STEP
    firsts = x + heads * head_stride + places
    first = tl.load(firsts, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(firsts + DISTANCE, mask=mask, other=0.0).to(tl.float32)
    dtype = x.dtype.element_ty
    turned_first = (first * cos - second * sin).to(dtype)
    turned_second = (second * cos + first * sin).to(dtype)
    return turned_first, turned_second, places, mask


@triton.jit(do_not_specialize=["positions_axis"])
def _rotate_kernel(
    x,
    positions,
    cos_sin,
    positions_axis,
    x_token,
    x_head,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    OFFSET: tl.constexpr,
    STEP: tl.constexpr,
    DISTANCE: tl.constexpr,
    NUM_AXES: tl.constexpr,
    FIRST_END: tl.constexpr,
    SECOND_END: tl.constexpr,
):
    """One program per HEADS heads of a token; x_token and x_head are strides."""
    token = tl.program_id(0).to(tl.int64)
    x += token * x_token
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    first, second, places, mask = rotated(
        x,
        x_head,
        heads,
        positions + token,
        positions_axis,
        cos_sin,
        NUM_HEADS,
        HALF,
        HALF_BLOCK,
        OFFSET,
        STEP,
        DISTANCE,
        NUM_AXES,
        FIRST_END,
        SECOND_END,
    )
    target = x + heads * x_head + places
    tl.store(target, first, mask=mask)
    tl.store(target + DISTANCE, second, mask=mask)
