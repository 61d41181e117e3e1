"""The shape and scales of one entry of the KV cache. Free of torch: memory is planned with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVEntry:
    """What the cache stores of a token for one layer, or for several layers that share it.

    Attributes:
        num_heads: KV heads.
        key_dim, value_dim: numbers of one head's key and value.
        latent: whether a value is the first `value_dim` numbers of its key, which is stored once
            (multi-head latent attention: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).
    """

    num_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False

    def __post_init__(self) -> None:
        if min(self.num_heads, self.key_dim, self.value_dim) < 1:
            raise ValueError(f"the sizes of a KV entry must be positive, not {self}")
        if self.latent and self.value_dim > self.key_dim:
            raise ValueError(
                f"a latent value is a part of its key: value_dim must be {self.key_dim} at most, "
                f"not {self.value_dim}"
            )

    @property
    def elements_per_token(self) -> int:
        """Numbers stored for one token, without padding."""
        return self.num_heads * (self.key_dim + (0 if self.latent else self.value_dim))


@dataclass(frozen=True, slots=True)
class EntryScales:
    """Factors on all stored keys, and on all stored values, of one entry of an 8-bit KV cache.

    Attributes:
        key, value: finite and positive; equal for a latent entry.
    """

    key: float
    value: float


def elements_per_token(entries: Iterable[KVEntry]) -> int:
    """Numbers that a cache of these entries stores for one token, without padding."""
    return sum(entry.elements_per_token for entry in entries)
