"""Returns memory to the system that the C library keeps for later allocations."""

from __future__ import annotations

import ctypes


def return_free_memory() -> None:
    """Call it once after something large was loaded: what a parser allocates meanwhile stays.

    Parsing the tokenizer of a large vocabulary leaves 50 MB behind. Does nothing where the C
    library is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
