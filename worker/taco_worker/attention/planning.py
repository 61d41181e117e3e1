"""What back ends share in working out a step's batch, once for all of its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from taco_worker.attention.metadata import AttentionMetadata

Plan = TypeVar("Plan")


class StepPlans(Generic[Plan]):
    """The plans of the step at hand: one for each sliding window among its layers."""

    def __init__(self) -> None:
        self._metadata: AttentionMetadata | None = None
        self._plans: dict[int | None, Plan] = {}

    def get(
        self, metadata: AttentionMetadata, sliding_window: int | None, make: Callable[[], Plan]
    ) -> Plan:
        """The plan that the first layer with this metadata object and window made."""
        if metadata is not self._metadata:
            self._metadata = metadata
            self._plans = {}
        if sliding_window not in self._plans:
            self._plans[sliding_window] = make()
        return self._plans[sliding_window]


def first_seen(position: int, sliding_window: int | None) -> int:
    """The first position that a token sees."""
    return 0 if sliding_window is None else max(0, position - sliding_window + 1)


def upload_indices(indices: np.ndarray, device: torch.device) -> Tensor:
    """As int64 on the device; the host does not wait for what the device still has to do.

    Pageable memory has been read when an asynchronous copy from it returns: none is kept.
    """
    host = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
    return host.to(device, non_blocking=True)


def indexable(cache: Tensor) -> Tensor:
    """The cache with its numbers as bytes where they are fp8, which torch does not always index."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
