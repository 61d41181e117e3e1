"""What the kernels of linear recurrences share: the tile of a state that a program holds."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# Numbers of a state that a program of one warp holds: 64 a thread.
_HELD = 2048


def tile_options(key_dim: int, value_dim: int) -> dict[str, Any]:
    """Options of a launch; equal ones for all steps, so that a token always gets equal bits."""
    padded_key = triton.next_power_of_2(key_dim)
    block = min(triton.next_power_of_2(value_dim), max(4, _HELD // padded_key))
    return {
        "KEY_DIM": key_dim,
        "VALUE_DIM": value_dim,
        "PADDED_KEY": padded_key,
        "BLOCK": block,
        # One warp adds up a column without waiting for others.
        "num_warps": max(1, padded_key * block // (2 * _HELD)),
    }


@triton.jit
def state_places(
    head,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED_KEY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The places of a head's tile in a row of memory, and which are in the state."""
    keys = tl.arange(0, PADDED_KEY)
    values = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = (head * KEY_DIM + keys)[:, None] * VALUE_DIM + values[None, :]
    return places, (keys < KEY_DIM)[:, None] & (values < VALUE_DIM)[None, :]


@triton.jit
def load_state(memory, memory_row, source, places, mask):
    """The tile of row `source`; zeros if that is negative."""
    return tl.load(
        memory + source.to(tl.int64) * memory_row + places, mask=mask & (source >= 0), other=0.0
    )


@triton.jit
def softplus(x):
    """log(1 + exp(x)), to float32's precision also where that is small."""
    small = tl.exp(-tl.abs(x))
    # log(1 + small) = 2 atanh(ratio), and the ratio is a third at most.
    ratio = small / (2.0 + small)
    square = ratio * ratio
    series = 1.0 / 13.0 + square * (1.0 / 15.0)
    series = 1.0 / 11.0 + square * series
    series = 1.0 / 9.0 + square * series
    series = 1.0 / 7.0 + square * series
    series = 1.0 / 5.0 + square * series
    series = 1.0 / 3.0 + square * series
    series = 1.0 + square * series
    return tl.maximum(x, 0.0) + 2.0 * ratio * series
