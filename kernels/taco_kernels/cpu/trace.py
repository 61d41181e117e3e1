"""What the threads of a pool do and when: the spans that the kernels record while traced."""

from __future__ import annotations

from enum import IntEnum
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from taco_kernels.cpu.structs import TraceSpan
from taco_kernels.library import CpuKernels

# Spans of one thread. A prefill of 1,024 tokens by a model of 24 layers has about 50,000.
CAPACITY = 1 << 20
_TOUCHED = 1 << 16


class SpanKind(IntEnum):
    """What a thread does during a span (native/csrc/runtime/trace.h)."""

    REGION = 1
    START = 2
    OP = 3
    LOGITS = 4
    PART = 5
    WAIT = 6


class Trace:
    """Traces the operations on a pool between `__enter__` and `__exit__`.

    The spans of one thread nest. A region covers the same time on every thread.
    """

    def __init__(self, kernels: CpuKernels, capacity: int = CAPACITY) -> None:
        """Reserves `capacity` spans for each thread; unused ones take no memory."""
        self._kernels = kernels
        # zeros() maps memory without writing to it. The system gives the pages of the first spans
        # here: a thread that had to wait for them (5 ms for a huge page) would hold up the others.
        self._spans = np.zeros((kernels.num_threads, capacity), dtype=np.dtype(TraceSpan))
        self._spans[:, :_TOUCHED]["kind"] = 0

    def __enter__(self) -> Self:
        address = self._spans.ctypes.data
        self._kernels.lib.taco_pool_trace(self._kernels.pool, address, self._spans.shape[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kernels.lib.taco_pool_trace(self._kernels.pool, None, 0)

    def spans(self, thread: int) -> npt.NDArray[Any]:
        """The spans of one thread, in the order in which they ended.

        Returns:
            A structured array with the fields of `TraceSpan`; times are nanoseconds of
            `time.perf_counter_ns`.

        Raises:
            ValueError: the thread had more spans than there is room for.
        """
        spans = self._spans[thread]
        count = np.count_nonzero(spans["kind"])
        if count == spans.size:
            raise ValueError(f"a thread recorded more than {count - 1} spans: trace fewer steps")
        return spans[:count]
