"""Embedding lookup by token id or by position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from taco_worker.models.plan.ops.op import Op, Shape
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """Rows of a table.

    Attributes:
        table: parameter [num_rows, out.size].
        num_rows: rows of the table.
        index: what selects the row, a token's id or its position. A step may give the rows of
            tokens instead (`ModelInput.embeddings`), so all such ops read one table.
        offset: added to the index.
    """

    out: Slice
    table: str
    num_rows: int
    index: Literal["tokens", "positions"] = "tokens"
    offset: int = 0

    @property
    def reads(self) -> tuple[Slice, ...]:
        return ()

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return {self.table: (self.num_rows, self.out.size)}
