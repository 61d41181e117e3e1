"""From the host's arrays to the device, without waiting for what the device does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes, for vector loads


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor on `device`; on a CPU it is the array's own memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    # Pinned memory comes from a pool that keeps it until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)


def upload_columns(device: torch.device, *columns: npt.NDArray[Any]) -> list[Tensor]:
    """Several arrays in one copy, which costs the host a third of a copy for each."""
    if device.type == "cpu":
        return [upload(column, device) for column in columns]
    starts = np.cumsum([0, *(-(-column.nbytes // _ALIGNMENT) * _ALIGNMENT for column in columns)])
    staged = torch.empty(int(starts[-1]), dtype=torch.uint8, pin_memory=True)
    host = staged.numpy()
    for start, column in zip(starts, columns, strict=False):
        host[start : start + column.nbytes] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    return [
        there[start : start + column.nbytes].view(_TORCH_TYPES[column.dtype.type]).view(column.shape)
        for start, column in zip(starts.tolist(), columns, strict=False)
    ]


_TORCH_TYPES: dict[type, torch.dtype] = {
    np.int32: torch.int32,
    np.int64: torch.int64,
    np.float32: torch.float32,
    np.float64: torch.float64,
}
