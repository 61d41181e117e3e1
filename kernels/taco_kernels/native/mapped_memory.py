"""Memory mappings in huge pages, and mappings that are touched before they are used. Without torch.

A 2 MiB page takes one TLB entry and one page fault instead of 512 of each with 4 KiB pages.
"""

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
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


def touch(address: int, num_bytes: int) -> Iterator[None]:
    """Touches memory of zeros, and pauses between pieces.

    A first touch of 1 GiB takes 0.2 s, and several seconds on a virtual machine whose host gives it
    memory at the first touch.
    """
    for start in range(0, num_bytes, _PIECE_BYTES):
        _memset(address + start, 0, min(_PIECE_BYTES, num_bytes - start))
        yield


class EarlyMemory:
    """Memory that a thread touches or fills while the process does something else.

    Attributes:
        begin: where the memory begins in its mapping: at a huge page.
        address: of that place.
    """

    def __init__(
        self,
        num_bytes: int,
        num_spare_bytes: int = 0,
        write: Callable[[int, int], Iterator[None]] = touch,
    ) -> None:
        """Starts the thread.

        Args:
            num_bytes: how much will surely be used.
            num_spare_bytes: how much more may be used.
            write: is called with the address and `num_bytes`, and may write there; what it yields
                is ignored. The thread stops at a `yield` once the memory is needed.

        Raises:
            MemoryError: the system cannot map it.
        """
        self._num_bytes = num_bytes
        self._mapping: mmap.mmap | None = map_memory(num_bytes + num_spare_bytes + HUGE_PAGE)
        # The mapping cannot be resized while a buffer of it exists.
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.begin = -address % HUGE_PAGE
        self.address = address + self.begin
        self._write = write
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="early-memory", daemon=True)
        self._thread.start()

    def holds(self, num_bytes: int) -> bool:
        """Whether as much can be taken."""
        return self._mapping is not None and self.begin + num_bytes <= len(self._mapping)

    def take(self, num_bytes: int) -> mmap.mmap | None:
        """Ends the thread, and gives memory away. The rest goes back to the system.

        Returns:
            A mapping with `num_bytes` from `begin` on, zeros where `write` wrote nothing; None if
            there is less, or it was taken before.
        """
        self.close()
        is_enough = self.holds(num_bytes)
        mapping, self._mapping = self._mapping, None
        if mapping is None or not is_enough:
            return None
        mapping.resize(self.begin + num_bytes)
        return mapping

    def release(self) -> None:
        """Ends the thread, and gives the memory back to the system."""
        self.close()
        self._mapping = None

    def close(self) -> None:
        """Ends the thread."""
        self._is_ending = True
        self._thread.join()

    def _run(self) -> None:
        for _ in self._write(self.address, self._num_bytes):
            if self._is_ending:
                return
