"""Releases pages of a memory-mapped weight file that have been read."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from torch import Tensor

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedPages:
    """The memory ranges where this process has mapped a file, at the time of the call."""

    def __init__(self, path: Path, maps: Path = Path("/proc/self/maps")) -> None:
        file = os.path.realpath(path)
        self._ranges: list[tuple[int, int]] = []
        for line in maps.read_text().splitlines():
            fields = line.split(maxsplit=5)  # range, rights, offset, device, inode, file
            if len(fields) == 6 and fields[5] == file:
                start, end = (int(address, 16) for address in fields[0].split("-"))
                self._ranges.append((start, end))

    def release(self, tensor: Tensor) -> None:
        """Release the whole pages of `tensor`; it stays valid and is read from the file again.

        Memory outside the mapped file is not touched: its content would be lost.
        """
        start, page = tensor.data_ptr(), mmap.PAGESIZE
        end = start + tensor.nbytes
        if not any(low <= start and end <= high for low, high in self._ranges):
            return
        first, last = -(-start // page) * page, end // page * page
        if first < last:
            _LIBC.madvise(first, last - first, mmap.MADV_DONTNEED)
