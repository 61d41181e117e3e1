"""Shifts the wall clock of a Python process by the seconds in the file `WALL_CLOCK_OFFSET`.

A process that has this folder on its PYTHONPATH reads the file (one little-endian double) at each
call, so that a test can set the clock of a service that runs. Monotonic clocks are not touched.
"""

import mmap
import os
import struct
import time
from collections.abc import Callable

if (_path := os.environ.get("WALL_CLOCK_OFFSET")) is not None:
    with open(_path, "rb") as _file:
        _offset = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)

    def _shifted(real: Callable[[], float]) -> Callable[[], float]:
        return lambda: real() + struct.unpack("<d", _offset)[0]

    def _shifted_ns(real: Callable[[], int]) -> Callable[[], int]:
        return lambda: real() + int(struct.unpack("<d", _offset)[0] * 1e9)

    time.time = _shifted(time.time)
    time.time_ns = _shifted_ns(time.time_ns)
