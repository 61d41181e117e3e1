"""The base of all ops of a model plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from taco_worker.models.plan.slices import Slice

Shape = tuple[int, ...]


class Op(ABC):
    """One operation on buffers; every row (token) is computed alone, except in attention."""

    __slots__ = ()

    @property
    @abstractmethod
    def reads(self) -> tuple[Slice, ...]:
        """The columns that it reads."""

    @property
    @abstractmethod
    def writes(self) -> tuple[Slice, ...]:
        """The columns that it writes; in-place ops read them, too."""

    @property
    def parameters(self) -> Mapping[str, Shape]:
        """Names of the parameters that it uses, with the shapes that its columns imply."""
        return {}

    @property
    def flops_per_token(self) -> int:
        """Multiplications and additions per token, without attention over the context."""
        return 0


def optional(*shapes: tuple[str | None, Shape]) -> dict[str, Shape]:
    """Shapes by name, without the parameters that an op does not have."""
    return {name: shape for name, shape in shapes if name is not None}
