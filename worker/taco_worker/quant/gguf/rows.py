"""Orders of rows in which GGUF stores matrices, and how Hugging Face's order is restored.

They apply to whole rows, so to the bytes of quantized matrices too. Source: `modify_tensors` of the
classes in llama.cpp's `conversion/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RowOrder(Protocol):
    """How a file orders the rows of a tensor."""

    def check(self, num_rows: int) -> None:
        """Raises ValueError if a tensor cannot have this number of rows."""
        ...

    def restore(self, tensor: Tensor) -> Tensor:
        """The tensor with rows in Hugging Face's order."""
        ...


@dataclass(frozen=True, slots=True)
class NeighbouringPairs:
    """The two rows of a head that are rotated together are neighbours (Llama's Q and K).

    In Hugging Face's order they are half a head apart.
    """

    num_heads: int

    def check(self, num_rows: int) -> None:
        if num_rows % (2 * self.num_heads):
            raise ValueError(f"{num_rows} rows are not {self.num_heads} heads of an even size")

    def restore(self, tensor: Tensor) -> Tensor:
        pairs = tensor.unflatten(0, (self.num_heads, -1, 2))
        return pairs.transpose(1, 2).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class HeadsByKind:
    """All queries, then all keys, then all values (Falcon, BLOOM).

    In Hugging Face's order each key and its value follow the queries that use them.
    """

    num_heads: int
    num_kv_heads: int

    def check(self, num_rows: int) -> None:
        num_heads = self.num_heads + 2 * self.num_kv_heads
        if num_rows % num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError(f"{num_rows} rows are not {num_heads} heads of one size")

    def restore(self, tensor: Tensor) -> Tensor:
        import torch

        size = tensor.shape[0] // (self.num_heads + 2 * self.num_kv_heads)
        counts = [size * self.num_heads, size * self.num_kv_heads, size * self.num_kv_heads]
        groups = [part.unflatten(0, (self.num_kv_heads, -1)) for part in tensor.split(counts)]
        return torch.cat(groups, 1).flatten(0, 1)
