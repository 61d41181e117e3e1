"""Copy streams: KV copies that overlap with the model's computation, and events to wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class CopyEvent(Protocol):
    """Marks the end of a queued piece of work."""

    def wait(self) -> None:
        """Order everything launched from now on after this event."""
        ...


class CopyStream(Protocol):
    """Runs pieces of work in order, in parallel with the computing stream."""

    def wait_for_compute(self) -> None:
        """Order later work after everything launched for computing so far."""
        ...

    def put(self, work: Callable[[], None]) -> CopyEvent: ...


class CudaCopyStream:
    """A copy stream on a separate CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def wait_for_compute(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def put(self, work: Callable[[], None]) -> CopyEvent:
        with torch.cuda.stream(self._stream):
            work()
            return _CudaCopyEvent(self._device)


class _CudaCopyEvent:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class EntryCopies:
    """Running copies of KV, which complete entry by entry."""

    def __init__(self, pending_copies: Sequence[tuple[int, CopyEvent]]) -> None:
        """
        Args:
            pending_copies: the first KV entry of each group and its event, in the order of the
                entries.
        """
        self._pending = list(pending_copies)

    def wait_for(self, entry: int) -> None:
        """Wait for the copies of an entry; call it before its KV is read or written."""
        while self._pending and self._pending[0][0] <= entry:
            self._pending.pop(0)[1].wait()

    def wait(self) -> None:
        """Wait for the copies of all entries."""
        while self._pending:
            self._pending.pop(0)[1].wait()
