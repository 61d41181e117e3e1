"""Memory of tensors and bytes, as the C++ library takes it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from taco_train.collective import library
from taco_train.collective.library import POINTER, U64

Buffer = Tensor | bytes | bytearray | memoryview


def buffer_of(buffer: Buffer, *, is_written: bool = False) -> tuple[int, int, object]:
    """Address, bytes, and an object that keeps the memory.

    Raises:
        ValueError: the tensor is not contiguous or not on the CPU, or the memory is read-only and
            `is_written`.
    """
    if isinstance(buffer, Tensor):
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise ValueError("a buffer must be a contiguous tensor on the CPU")
        return buffer.data_ptr(), buffer.nbytes, buffer
    view = memoryview(buffer).cast("B")
    if view.readonly:
        if is_written:
            raise ValueError("a buffer that receives must be writable")
        data = bytes(view)
        pointer = ctypes.cast(ctypes.c_char_p(data), POINTER)
        return pointer.value or 0, len(data), data
    if not len(view):
        return 0, 0, view
    kept = (ctypes.c_char * len(view)).from_buffer(view)
    return ctypes.addressof(kept), len(view), kept


@dataclass
class Parts:
    """Memory to be sent to, or received from, ranks."""

    ranks: list[int] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[tuple[int, Buffer]], *, is_written: bool = False) -> Parts:
        made = cls()
        for rank, buffer in parts:
            address, length, kept = buffer_of(buffer, is_written=is_written)
            made.ranks.append(rank)
            made.addresses.append(address)
            made.lengths.append(length)
            made.kept.append(kept)
        return made

    @property
    def rank_array(self) -> ctypes.Array[ctypes.c_int32]:
        return library.int32_array(self.ranks)

    @property
    def data_array(self) -> ctypes.Array[ctypes.c_void_p]:
        return (POINTER * len(self.addresses))(*self.addresses)

    @property
    def bytes_array(self) -> ctypes.Array[ctypes.c_uint64]:
        return (U64 * len(self.lengths))(*self.lengths)
