"""Work that a device does beside what it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class CopyEvent(Protocol):
    """The end of a piece of work."""

    def wait(self) -> None:
        """What is launched from now on comes behind it."""
        ...


class CopyStream(Protocol):
    """Does one piece of work after the other."""

    def follow(self) -> None:
        """What is put in from now on comes behind all that has been launched for computing."""
        ...

    def put(self, work: Callable[[], None]) -> CopyEvent: ...


class CudaCopyStream:
    """A stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def follow(self) -> None:
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


class LayerCopies:
    """Copies under way that reach a model's layers one after the other."""

    def __init__(self, pending_copies: Sequence[tuple[int, CopyEvent]]) -> None:
        """
        Args:
            pending_copies: the first layer of each group and its end, in the order of the layers.
        """
        self._pending = list(pending_copies)

    def wait_for(self, layer: int) -> None:
        """To be called before the layer's KV is read or written."""
        while self._pending and self._pending[0][0] <= layer:
            self._pending.pop(0)[1].wait()

    def wait(self) -> None:
        """Wait for all layers."""
        while self._pending:
            self._pending.pop(0)[1].wait()
