"""Asynchronous copies between the host and the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

_ALIGNMENT = 16  # bytes, for vector loads
_TORCH_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


@dataclass(frozen=True, slots=True)
class Download:
    """Tensors that are being copied to the host.

    Attributes:
        done: None if the tensors are already there.
    """

    tensors: list[Tensor]
    done: torch.cuda.Event | None = None

    def wait(self) -> list[Tensor]:
        if self.done is not None:
            self.done.synchronize()
        return self.tensors


class Transfers:
    """Copies in parallel with the computing stream: a step's input arrives while another runs.

    On a CPU nothing is copied: arrays and tensors share their memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.overlaps = device.type == "cuda"
        if self.overlaps:
            self._up, self._down = (torch.cuda.Stream(device) for _ in range(2))

    def enter(self) -> None:
        """Make the device current in this thread; CUDA keeps a current device per thread."""
        if self.overlaps:
            torch.cuda.set_device(self.device)

    def memory_bytes(self) -> dict[str, int]:
        """GPU memory as torch sees it: allocated, reserved and total bytes. Empty on a CPU, where
        the size of the process shows it. Does not call the driver.
        """
        if self.device.type != "cuda":
            return {}
        return {
            "device_allocated": torch.cuda.memory_allocated(self.device),
            "device_reserved": torch.cuda.memory_reserved(self.device),
            "device_total": torch.cuda.get_device_properties(self.device).total_memory,
        }

    def is_lost(self) -> bool:
        """Whether an error, such as an illegal address, made the device unusable."""
        if not self.overlaps:
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def upload(self, *columns: Array) -> list[Tensor]:
        """Copy arrays to the device as tensors, all in one copy from pinned memory.

        The memory comes from torch's pool of pinned memory, which keeps it until the copy is done.
        """
        if not self.overlaps:
            return [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
        staged = torch.empty(packed_size(columns), dtype=torch.uint8, pin_memory=True)
        pack(columns, staged)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._up):
            there = staged.to(self.device, non_blocking=True)
        computing.wait_stream(self._up)
        there.record_stream(computing)
        return unpack(there, columns)

    def download(self, *tensors: Tensor) -> Download:
        """Start copying tensors to the host; waiting for them does not block other launches."""
        if not self.overlaps:
            return Download(list(tensors))
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        arriving = []
        with torch.cuda.stream(self._down):
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                arriving.append(host.copy_(tensor, non_blocking=True))
                tensor.record_stream(self._down)
            done = torch.cuda.Event()
            done.record()
        return Download(arriving, done)


def packed_size(columns: Sequence[Array]) -> int:
    """Bytes that `pack` fills."""
    return sum(_padded_size(column) for column in columns)


def pack(columns: Sequence[Array], packed: Tensor) -> None:
    """Write columns one after the other into uint8 `packed`, each aligned for vector loads."""
    host, start = packed.numpy(), 0
    for column in columns:
        flat = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        host[start : start + flat.size] = flat
        start += _padded_size(column)


def unpack(packed: Tensor, like: Sequence[Array]) -> list[Tensor]:
    """Views of the packed columns in `packed`, in the shapes and types of `like`."""
    parts = packed.split([_padded_size(column) for column in like])
    return [
        part[: column.nbytes].view(_TORCH_TYPES[column.dtype]).view(column.shape)
        for part, column in zip(parts, like, strict=True)
    ]


def _padded_size(column: Array) -> int:
    return -(-column.nbytes // _ALIGNMENT) * _ALIGNMENT
