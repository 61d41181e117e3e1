"""Packed token ids: little-endian int32, as requests and plans carry them."""

import numpy as np

TOKEN_BYTES = 4


def token_array(packed: bytes) -> np.ndarray:
    """Packed token ids as an int32 array, without a copy."""
    return np.frombuffer(packed, dtype="<i4")
