"""What an attention back end does, and which there are."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from torch import Tensor

from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.kv_memory import KVCache


class AttentionBackend(Protocol):
    """Reads and writes the paged KV of one model.

    For each layer of a step `write_kv` comes first and `attend` after it, with the same metadata
    object for all layers, so that what depends on the batch alone can be worked out once.
    """

    def write_kv(
        self,
        key: Tensor,
        value: Tensor,
        kv_cache: KVCache,
        layer: int,
        metadata: AttentionMetadata,
    ) -> None:
        """Store this step's keys and values, [num_tokens, num_kv_heads, head_dim] each."""
        ...

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        layer: int,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """Causal attention over each token's own sequence.

        Args:
            query: [num_tokens, num_heads, head_dim].
            scale: factor on query-key products.
            sliding_window: how many tokens a token sees, itself included; None is all.

        Returns:
            [num_tokens, num_heads, head_dim].
        """
        ...


_BACKEND_CLASSES = {"torch": ("taco_worker.attention.torch_backend", "TorchAttention")}


def create_attention_backend(name: str) -> AttentionBackend:
    """Raises ValueError for a name that is not known."""
    if name not in _BACKEND_CLASSES:
        known = ", ".join(sorted(_BACKEND_CLASSES))
        raise ValueError(f"unknown attention back end {name!r}; known: {known}")
    module_name, class_name = _BACKEND_CLASSES[name]
    backend: AttentionBackend = getattr(import_module(module_name), class_name)()
    return backend
