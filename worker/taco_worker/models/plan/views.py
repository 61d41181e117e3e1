"""View expressions: which part of a stored tensor fills a parameter, and in which layout.

A view knows the shape that it needs and the shape that it gives, so that shapes are checked before
a tensor is read. `apply` uses only indexing and methods that torch tensors and NumPy arrays share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

Shape = tuple[int, ...]


class View(Protocol):
    """One step from a stored tensor towards a parameter."""

    def stored_shape(self, shape: Shape) -> Shape:
        """The shape of a tensor from which `apply` makes one of `shape`."""
        ...

    def apply(self, tensor: Any) -> Any:
        """The part of `tensor`, as a view where that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class Transpose:
    """A matrix that is stored as [in, out] (GPT-2's Conv1D); vectors stay."""

    def stored_shape(self, shape: Shape) -> Shape:
        return shape[::-1]

    def apply(self, tensor: Any) -> Any:
        return tensor.T if tensor.ndim == 2 else tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns [start, start + count) of `total`."""

    start: int
    total: int
    count: int

    def stored_shape(self, shape: Shape) -> Shape:
        return (*shape[:-1], self.total)

    def apply(self, tensor: Any) -> Any:
        return tensor[..., self.start : self.start + self.count]


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """The same rows of each group, such as the queries of heads stored as [q, k, v] one by one.

    Attributes:
        num_groups: groups of equal size that make up the stored rows.
        group_size: rows of a group.
        start, count: the rows that are taken from each group.
    """

    num_groups: int
    group_size: int
    start: int
    count: int

    def stored_shape(self, shape: Shape) -> Shape:
        return (self.num_groups * self.group_size, *shape[1:])

    def apply(self, tensor: Any) -> Any:
        groups = tensor.reshape(self.num_groups, self.group_size, *tensor.shape[1:])
        part = groups[:, self.start : self.start + self.count]
        return part.reshape(self.num_groups * self.count, *tensor.shape[1:])


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """A matrix per head, of the same rows of each head.

    Attributes:
        head_size: stored rows of a head.
        start, count: the rows that are taken from each head.
        transposed: a head's matrix is [columns, count] instead of [count, columns].
    """

    head_size: int
    start: int
    count: int
    transposed: bool = False

    def stored_shape(self, shape: Shape) -> Shape:
        num_heads, rows, columns = shape
        return (num_heads * self.head_size, rows if self.transposed else columns)

    def apply(self, tensor: Any) -> Any:
        heads = tensor.reshape(-1, self.head_size, tensor.shape[-1])
        part = heads[:, self.start : self.start + self.count]
        return part.swapaxes(1, 2) if self.transposed else part


@dataclass(frozen=True, slots=True)
class EveryRow:
    """Every `step`-th row from `start` on, such as gates that alternate with ups."""

    start: int
    step: int

    def stored_shape(self, shape: Shape) -> Shape:
        return (self.step * shape[0], *shape[1:])

    def apply(self, tensor: Any) -> Any:
        return tensor[self.start :: self.step]


@dataclass(frozen=True, slots=True)
class SwappedHalves:
    """The rows of each head, its second half first (nanochat).

    Attributes:
        head_dim: rows of a head, an even number.
    """

    head_dim: int

    def stored_shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: Any) -> Any:
        halves = tensor.reshape(-1, 2, self.head_dim // 2, *tensor.shape[1:])
        return halves[:, [1, 0]].reshape(tensor.shape)


@dataclass(frozen=True, slots=True)
class Flatten:
    """A tensor that is stored as `stored`, as rows (Cohere's norms are [heads, head_dim])."""

    stored: Shape

    def stored_shape(self, shape: Shape) -> Shape:
        return self.stored

    def apply(self, tensor: Any) -> Any:
        return tensor.reshape(-1)


@dataclass(frozen=True, slots=True)
class PlusOne:
    """Norm weights that are stored as the difference from 1 (Gemma)."""

    def stored_shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: Any) -> Any:
        return tensor.float() + 1


@dataclass(frozen=True, slots=True)
class Softplus:
    """ln(1 + exp(x)) of numbers that are stored as x (xIELU's factors)."""

    def stored_shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: Any) -> Any:
        return tensor.float().exp().log1p()


@dataclass(frozen=True, slots=True)
class NegativeExp:
    """-exp(x) of numbers that are stored as x (rates of recurrences)."""

    def stored_shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: Any) -> Any:
        return -tensor.float().exp()


@dataclass(frozen=True, slots=True)
class Channels:
    """The factors of a convolution of each channel by itself, stored as [channels, 1, width]."""

    def stored_shape(self, shape: Shape) -> Shape:
        return (shape[0], 1, shape[1])

    def apply(self, tensor: Any) -> Any:
        return tensor.reshape(tensor.shape[0], tensor.shape[2])


@dataclass(frozen=True, slots=True)
class NormalizeRows:
    """Rows scaled to length 1 (Baichuan 2's LM head)."""

    def stored_shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: Any) -> Any:
        rows = tensor.float()
        return rows / ((rows**2).sum(-1, keepdims=True) ** 0.5).clip(1e-7)


@dataclass(frozen=True, slots=True)
class NormalizeColumns:
    """Columns scaled to length 1 (Ling's LM head)."""

    def stored_shape(self, shape: Shape) -> Shape:
        return shape

    def apply(self, tensor: Any) -> Any:
        rows = tensor.float()
        return rows / ((rows**2).sum(0, keepdims=True) ** 0.5 + 1e-7)
