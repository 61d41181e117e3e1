"""What an attention back end does, and which there are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata


class AttentionBackend(Protocol):
    """Reads the paged KV of one model.

    A step's keys and values are in the cache before `attend`, and all layers pass the same metadata
    object, so that what depends on the batch alone can be worked out once.

    Attributes:
        supports_trees: whether it goes by `AttentionMetadata.tree`.
    """

    supports_trees: bool

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        layer: int,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """Causal attention over each token's own sequence, in trees over the way to the token.

        Args:
            query: [num_tokens, num_heads, head_dim].
            scale: factor on query-key products.
            sliding_window: how many tokens a token sees, itself included; None is all.

        Returns:
            [num_tokens, num_heads, head_dim].
        """
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """Attributes:
    package: what it needs beside torch.
    device: the only kind of device that it runs on; None is any.
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
    """The fastest one on a kind of device."""
    return "triton" if device.type == "cuda" else "torch"


def create_attention_backend(name: str, device: torch.device | None = None) -> AttentionBackend:
    """A back end, whose packages are imported only now.

    Args:
        device: what it is to run on; None: left open.

    Raises:
        ValueError: the name is not known, a package is missing, or it does not run on `device`.
    """
    if name not in _ENTRIES:
        known = ", ".join(_ENTRIES)
        raise ValueError(f"unknown attention back end {name!r}; known: {known}")
    entry = _ENTRIES[name]
    if device is not None and entry.device not in (None, device.type):
        raise ValueError(
            f"attention back end {name!r} runs on {entry.device} only, not on {device.type}, "
            f"where {default_attention_backend(device)!r} does"
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
