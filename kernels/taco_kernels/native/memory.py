"""Aligned memory for weights, KV blocks and scratch, in huge pages where the system has them."""

import ctypes
import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from taco_kernels.native.mapped_memory import HUGE_PAGE, EarlyMemory, map_memory

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
]
_MAP_FIXED = 0x10

ALIGNMENT = 64  # a cache line, and a row of an AMX tile
# From this size on memory is mapped directly: freed memory leaves no hole in the heap.
_MIN_MAPPED_BYTES = 128 << 10


def allocate(num_bytes: int, early: EarlyMemory | None = None) -> Tensor:
    """Allocates memory without writing to it: untouched pages take none. The tensor owns it.

    Args:
        early: is taken if it is large enough, with what has been written to it.

    Returns:
        uint8 [num_bytes], zeros, aligned to 64 bytes, and to a huge page if it fills one.

    Raises:
        MemoryError: the system cannot map it.
    """
    if early is not None and (mapping := early.take(num_bytes)) is not None:
        return torch.frombuffer(mapping, dtype=torch.uint8)[early.begin :]
    if num_bytes < _MIN_MAPPED_BYTES:
        memory = torch.zeros(num_bytes + ALIGNMENT, dtype=torch.uint8)
        return _aligned(memory, ALIGNMENT, num_bytes)
    alignment = HUGE_PAGE if num_bytes >= HUGE_PAGE else 0  # any page has the smaller one
    mapping = map_memory(num_bytes + alignment)
    return _aligned(torch.frombuffer(mapping, dtype=torch.uint8), alignment or ALIGNMENT, num_bytes)


def _aligned(memory: Tensor, alignment: int, num_bytes: int) -> Tensor:
    begin = -memory.data_ptr() % alignment
    return memory[begin : begin + num_bytes]


class Arena:
    """One piece of memory that arrays take parts of.

    In huge pages, arrays with separate memory would each leave the end of a page unused.
    """

    def __init__(self, num_bytes: int, early: EarlyMemory | None = None) -> None:
        self._memory = allocate(num_bytes, early)
        self._num_used = 0

    def take(self, num_bytes: int) -> Tensor:
        """The next part: uint8 [num_bytes], aligned to 64 bytes. It keeps all the memory alive.

        Raises:
            MemoryError: less is left.
        """
        begin = -(-self._num_used // ALIGNMENT) * ALIGNMENT
        if begin + num_bytes > self._memory.numel():
            left = self._memory.numel() - begin
            raise MemoryError(f"{num_bytes} bytes do not fit: {left} are left")
        self._num_used = begin + num_bytes
        return self._memory[begin : self._num_used]

    @property
    def whole(self) -> Tensor:
        """All of its memory, uint8."""
        return self._memory

    def map_file(self, file: Path) -> None:
        """Replace the content by that of a file of the same size, whose pages are read when used.

        Processes that map the same file share its pages until they write to them. Small memory is
        not in whole pages, and copies the file.

        Raises:
            ValueError: the file has another size.
            OSError: it cannot be read.
        """
        size, address = self._memory.numel(), self._memory.data_ptr()
        with file.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size != size:
                raise ValueError(f"{file} has not {size} bytes")
            if size < _MIN_MAPPED_BYTES or address % mmap.PAGESIZE:
                stream.readinto(self._memory.numpy().data)
                return
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            flags = mmap.MAP_PRIVATE | _MAP_FIXED
            # The tensor's memory is a mapping already, and ends with the tensor.
            found = _LIBC.mmap(address, size, rights, flags, stream.fileno(), 0)
        if found != address:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot map {file}: {os.strerror(number)}")


class Scratch:
    """Scratch memory that steps reuse. It grows and never shrinks."""

    def __init__(self) -> None:
        self._memory = allocate(0)
        self._num_bytes, self._address = 0, self._memory.data_ptr()

    def reserve(self, num_bytes: int) -> int:
        """Returns the address of `num_bytes` bytes, aligned to 64. Earlier contents may be lost."""
        if num_bytes > self._num_bytes:
            self._num_bytes, self._memory = 0, allocate(0)  # frees the old memory first
            self._memory = allocate(num_bytes)
            self._num_bytes, self._address = num_bytes, self._memory.data_ptr()
        return self._address


def huge_page_bytes(rollup: Path = Path("/proc/self/smaps_rollup")) -> int:
    """Bytes of this process in huge pages; 0 if the system does not report them."""
    try:
        lines = rollup.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages:"))
