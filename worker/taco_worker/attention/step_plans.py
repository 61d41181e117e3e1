"""Helpers that attention back ends share to plan a step once for all layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from taco_worker.attention.metadata import AttentionMetadata

Plan = TypeVar("Plan")


class StepPlans(Generic[Plan]):
    """The plans of the current step: one for each sliding window among the layers."""

    def __init__(self) -> None:
        self._metadata: AttentionMetadata | None = None
        self._plans: dict[int | None, Plan] = {}

    def get(
        self, metadata: AttentionMetadata, sliding_window: int | None, make: Callable[[], Plan]
    ) -> Plan:
        """Return the plan for this metadata object and window; the first layer computes it."""
        if metadata is not self._metadata:
            self._metadata = metadata
            self._plans = {}
        if sliding_window not in self._plans:
            self._plans[sliding_window] = make()
        return self._plans[sliding_window]


def first_seen(position: int, sliding_window: int | None) -> int:
    """The first position that a token can see."""
    return 0 if sliding_window is None else max(0, position - sliding_window + 1)


def upload_indices(indices: np.ndarray, device: torch.device) -> Tensor:
    """Copy indices to the device as int64, without waiting for earlier work of the device.

    An asynchronous copy from pageable memory has read its source when it returns, so the source
    need not be kept.
    """
    host = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
    return host.to(device, non_blocking=True)


def indexable(cache: Tensor) -> Tensor:
    """A view of the cache that torch can index: fp8 as bytes, because torch lacks fp8 indexing."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
