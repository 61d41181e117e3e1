"""Helpers that attention back ends share to plan a step once for all layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from taco_kernels.kv_format import FLOAT8_DTYPES
from taco_worker.attention.metadata import AttentionMetadata

Plan = TypeVar("Plan")


class StepPlans(Generic[Plan]):
    """The plans of the current step: one for each kind of layer."""

    def __init__(self) -> None:
        self._metadata: AttentionMetadata | None = None
        self._plans: dict[Hashable, Plan] = {}

    def get(self, metadata: AttentionMetadata, kind: Hashable, make: Callable[[], Plan]) -> Plan:
        """Return the plan for this metadata object and kind of layer; the first computes it."""
        if metadata is not self._metadata:
            self._metadata = metadata
            self._plans = {}
        if kind not in self._plans:
            self._plans[kind] = make()
        return self._plans[kind]


def first_seen(position: int, window: int | None) -> int:
    """The first position that a token can see."""
    return 0 if window is None else max(0, position - window + 1)


def query_positions(metadata: AttentionMetadata) -> Tensor:
    """The position of each query token, integers [num_tokens]; a tree's are depths."""
    if metadata.tree is not None:
        return metadata.tree.positions
    lens = zip(metadata.query_lens_host, metadata.seq_lens_host, strict=True)
    positions = [np.arange(seq_len - query_len, seq_len) for query_len, seq_len in lens]
    return upload_indices(np.concatenate([*positions, []]), metadata.block_tables.device)


def upload_indices(indices: np.ndarray, device: torch.device) -> Tensor:
    """Copy indices to the device as int64, without waiting for earlier work of the device.

    An asynchronous copy from pageable memory has read its source when it returns, so the source
    need not be kept.
    """
    host = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
    return host.to(device, non_blocking=True)


def indexable(cache: Tensor) -> Tensor:
    """A view of the cache that torch can index: fp8 as bytes, because torch lacks fp8 indexing."""
    return cache.view(torch.uint8) if cache.dtype in FLOAT8_DTYPES else cache
