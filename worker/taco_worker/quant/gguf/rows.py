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


@dataclass(frozen=True, slots=True)
class TiledHeads:
    """Value heads of Gated DeltaNet: the first one of all keys, then the second one of all keys.

    In Hugging Face's order the heads of one key follow one another.

    Attributes:
        start: rows before those of value heads.
        num_keys: key heads.
        per_key: value heads of each.
        size: rows of a value head.
    """

    start: int
    num_keys: int
    per_key: int
    size: int

    @property
    def count(self) -> int:
        """Rows of all value heads."""
        return self.num_keys * self.per_key * self.size

    def check(self, num_rows: int) -> None:
        if num_rows != self.start + self.count:
            raise ValueError(
                f"it has {num_rows} rows, not {self.num_keys * self.per_key} value heads of "
                f"{self.size} after {self.start} others"
            )

    def restore(self, tensor: Tensor) -> Tensor:
        import torch

        heads = tensor[self.start :].unflatten(0, (self.per_key, self.num_keys, self.size))
        return torch.cat([tensor[: self.start], heads.transpose(0, 1).flatten(0, 2)])


@dataclass(frozen=True, slots=True)
class PartsByKey:
    """Parts of a matrix that has all parts of one key head, then all of the next (Qwen3-Next).

    Attributes:
        num_keys: key heads.
        sizes: rows of each part of one key head.
        chosen: the parts that are wanted, by their index.
    """

    num_keys: int
    sizes: tuple[int, ...]
    chosen: tuple[int, ...]

    @property
    def count(self) -> int:
        """Rows of the wanted parts."""
        return self.num_keys * sum(self.sizes[one] for one in self.chosen)

    def check(self, num_rows: int) -> None:
        if num_rows != self.num_keys * sum(self.sizes):
            raise ValueError(
                f"it has {num_rows} rows, not {self.num_keys} key heads of {sum(self.sizes)}"
            )

    def restore(self, tensor: Tensor) -> Tensor:
        import torch

        parts = tensor.unflatten(0, (self.num_keys, -1)).split(self.sizes, 1)
        return torch.cat([parts[one].flatten(0, 1) for one in self.chosen])
