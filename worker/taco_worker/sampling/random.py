"""Counter-based random numbers: one per (seed, position), whatever else is running."""

import torch
from torch import Tensor

# Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (OOPSLA 2014), with the
# constants of David Stafford's variant 13 of the MurmurHash3 finalizer.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """The random number of each (seed, position).

    Integer arithmetic modulo 2**64 only, so that every device gives the same bits. The seed is
    mixed before the position is added: streams of neighbouring seeds are not shifts of each other.

    Args:
        seeds, positions: int64, of one shape.

    Returns:
        float64 multiples of 2**-52 in [0, 1).
    """
    state = _mix(seeds + _signed(_GOLDEN_GAMMA)) + positions * _signed(_GOLDEN_GAMMA)
    return _shift_right(_mix(state), 12).to(torch.float64) * 2.0**-52


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """A logical shift: int64 shifts copy the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the bits of a uint64."""
    return value - 2**64 if value >= 2**63 else value
