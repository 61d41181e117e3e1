"""What needs CUDA: a side stream, events, NCCL groups. Tensors on the CPU need none of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

_POLL_SECONDS = 2e-5


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a stream of the caller, at which a tensor's values are complete."""

    stream: Any  # torch.cuda.Stream
    event: Any  # torch.cuda.Event


def mark(tensor: Tensor) -> Mark | None:
    """The point that the caller's stream has reached; None on the CPU."""
    if tensor.device.type != "cuda":
        return None
    stream = torch.cuda.current_stream(tensor.device)
    return Mark(stream, stream.record_event())


def wait(marks: Iterable[Mark | None]) -> None:
    """Returns when the values are complete: for copies to the CPU, in any stream."""
    for one in marks:
        if one is not None:
            one.event.synchronize()


def default_device(local_rank: int) -> torch.device:
    """The device of a rank that has sent no tensor yet."""
    return torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))


class SideStream:
    """Computes beside the streams of the caller.

    Args:
        device: of the tensors; on the CPU everything happens at once.
        timeout_seconds: after which work counts as lost: a rank is gone.
    """

    def __init__(self, device: torch.device, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    @contextmanager
    def after(self, marks: Iterable[Mark | None]) -> Iterator[None]:
        """In the block the stream is current; it first waits for the marks.

        The block ends when the work in it has.

        Raises:
            TimeoutError: it does not end within the time limit.
        """
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            for one in marks:
                if one is not None:
                    self._stream.wait_event(one.event)
            yield
            self._finish()

    def hand_over(self, output: object, one: Mark | None) -> None:
        """The caller's stream uses a tensor of this one: its memory is free after both."""
        if one is not None and isinstance(output, Tensor):
            output.record_stream(one.stream)

    def _finish(self) -> None:
        assert self._stream is not None
        end = self._stream.record_event()
        deadline = time.monotonic() + self._timeout_seconds
        while not end.query():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the device has not ended a collective within {self._timeout_seconds:g} s: a "
                    "rank is gone or silent"
                )
            time.sleep(_POLL_SECONDS)


def open_nccl(store: Any, rank: int, size: int, timeout_seconds: float) -> Any:
    """An NCCL group of torch.

    Raises:
        ValueError: this torch has no NCCL.
    """
    try:
        from torch._C._distributed_c10d import ProcessGroupNCCL
    except ImportError:
        raise ValueError("tensors on CUDA need a torch with NCCL") from None
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_seconds)
    return ProcessGroupNCCL(store, rank, size, options)
