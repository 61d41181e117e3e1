"""The interface of attention back ends, and the registry that creates them by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.kv_entry import KVEntry
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """Computes attention over the paged KV cache of one model.

    A step's keys and values are in the cache before `attend`. All layers pass the same metadata
    object, so a back end can compute what depends on the batch alone once per step.

    Attributes:
        name: as `create_attention_backend` takes it.
        supports_trees: whether it applies `AttentionMetadata.tree`.
        supports_scales: whether it reads a cache of 8 bits, with its scales.
    """

    name: str
    supports_trees: bool
    supports_scales: bool

    def unsupported(self, options: AttentionOptions, entry: KVEntry) -> str | None:
        """What a layer needs and this back end lacks, for an error; None if it can run it."""
        ...

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        entry: int,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> Tensor:
        """Causal attention of each token over its own sequence; in a tree, over its ancestors.

        Args:
            query: [num_tokens, num_heads, key_dim].
            entry: index of the cache's entry that holds the layer's keys and values.

        Returns:
            [num_tokens, num_heads, value_dim].
        """
        ...


def require_support(backend: AttentionBackend, options: AttentionOptions, entry: KVEntry) -> None:
    """Raise ValueError unless the back end supports a layer's options; call it at load."""
    lacking = backend.unsupported(options, entry)
    if lacking is not None:
        raise ValueError(
            f"attention back end {backend.name!r} does not support {lacking}, which this model "
            "needs: use 'triton' on a GPU, or 'torch'"
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """Attributes:
    package: the package that it needs beside torch.
    device: the only device type that it runs on; None is any.
    """

    module_name: str
    class_name: str
    package: str | None = None
    device: str | None = None


_ENTRIES = {
    "torch": _Entry("torch_backend", "TorchAttention"),
    "triton": _Entry("triton_backend", "TritonAttention", "triton", "cuda"),
    "xformers": _Entry("xformers_backend", "XformersAttention", "xformers", "cuda"),
}


def default_attention_backend(device: torch.device) -> str:
    """The fastest back end on a device type."""
    return "triton" if device.type == "cuda" else "torch"


def create_attention_backend(name: str, device: torch.device | None = None) -> AttentionBackend:
    """Create a back end; its packages are imported only now.

    Args:
        device: the device that it will run on; None skips the check.

    Raises:
        ValueError: the name is unknown, a package is missing, or it does not run on `device`.
    """
    if name not in _ENTRIES:
        known = ", ".join(_ENTRIES)
        raise ValueError(f"unknown attention back end {name!r}; known: {known}")
    entry = _ENTRIES[name]
    if device is not None and entry.device not in (None, device.type):
        raise ValueError(
            f"attention back end {name!r} runs on {entry.device} only, not on {device.type}: "
            f"use {default_attention_backend(device)!r}"
        )
    try:
        module = import_module(f"taco_worker.attention.{entry.module_name}")
    except ImportError as error:
        raise ValueError(
            f"attention back end {name!r} needs the package {entry.package}, which cannot be "
            f"imported: {error} (pip install 'taco-llm[gpu]')"
        ) from error
    backend: AttentionBackend = getattr(module, entry.class_name)()
    return backend
