"""Counter-based random numbers: one per (seed, position), independent of the rest of the batch."""

import numpy as np

from taco_worker.sampling.slot_params import Array

# Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (OOPSLA 2014), with the
# constants of David Stafford's variant 13 of the MurmurHash3 finalizer.
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: Array, positions: Array) -> Array:
    """The random number of each (seed, position).

    Only integer arithmetic modulo 2**64, so that every machine returns the same bits. The seed is
    mixed before the position is added: streams of neighbouring seeds are not shifts of each other.

    Args:
        seeds, positions: int64, of one shape.

    Returns:
        float64 multiples of 2**-52 in [0, 1).
    """
    state = _mix(seeds.view(np.uint64) + _GOLDEN_GAMMA)
    state += positions.view(np.uint64) * _GOLDEN_GAMMA
    return (_mix(state) >> np.uint64(12)) * 2.0**-52


def _mix(z: Array) -> Array:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))
