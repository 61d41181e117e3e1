"""Memory mappings in huge pages, and mappings that are touched before they are used. Without torch.

A 2 MiB page takes one TLB entry and one page fault instead of 512 of each with 4 KiB pages.
"""

import ctypes
import mmap
import threading
from contextlib import suppress

HUGE_PAGE = 2 << 20
# Between two pieces a thread needs the interpreter's lock, which may take 5 ms.
_PIECE_BYTES = 32 << 20

_memset = ctypes.CDLL(None).memset  # unlike ctypes.memset it lets other threads run
_memset.restype = ctypes.c_void_p
_memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def map_memory(num_bytes: int) -> mmap.mmap:
    """Maps memory without touching it, so that it takes no pages yet.

    Raises:
        MemoryError: the system cannot map it.
    """
    try:
        mapping = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot map {num_bytes} bytes: {error.strerror}") from error
    with suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class EarlyMemory:
    """Memory that a thread touches while the process does something else.

    A first touch of 1 GiB takes 0.2 s, and several seconds on a virtual machine whose host gives it
    memory at the first touch.
    """

    def __init__(self, num_bytes: int, num_spare_bytes: int = 0) -> None:
        """Starts the thread.

        Args:
            num_bytes: how much will surely be used; it is touched.
            num_spare_bytes: how much more may be used.

        Raises:
            MemoryError: the system cannot map it.
        """
        self._num_bytes = num_bytes
        self._mapping: mmap.mmap | None = map_memory(num_bytes + num_spare_bytes)
        self._is_ending = False
        self._thread = threading.Thread(target=self._touch, name="early-memory", daemon=True)
        self._thread.start()

    def take(self, num_bytes: int) -> mmap.mmap | None:
        """Ends the touching, and gives memory away: zeros. The rest goes back to the system.

        Returns:
            A mapping of `num_bytes`; None if there is less, or it was taken before.
        """
        self.close()
        mapping, self._mapping = self._mapping, None
        if mapping is None or len(mapping) < num_bytes:
            return None
        mapping.resize(num_bytes)
        return mapping

    def close(self) -> None:
        """Ends the touching."""
        self._is_ending = True
        self._thread.join()

    def _touch(self) -> None:
        assert self._mapping is not None
        # The mapping cannot be resized while `first` exists.
        first = ctypes.c_char.from_buffer(self._mapping)
        address = ctypes.addressof(first)
        for start in range(0, self._num_bytes, _PIECE_BYTES):
            if self._is_ending:
                return
            _memset(address + start, 0, min(_PIECE_BYTES, self._num_bytes - start))
