"""Codes that wait until all rows of their matrix are read."""

from __future__ import annotations

from torch import Tensor

from taco_kernels.cpu.column_order import ColumnOrder, order_of
from taco_kernels.group_codes import GroupCodes


class PendingCodes:
    """A matrix whose columns may have any order of groups.

    Its operands are int8 only if all its rows have one order, which headers do not show.

    Attributes:
        codes, biases: the parts so far, with the row that each begins at.
    """

    def __init__(self, num_rows: int) -> None:
        self.codes: list[tuple[GroupCodes, int]] = []
        self.biases: list[tuple[Tensor, int]] = []
        self._num_missing = num_rows

    @property
    def is_complete(self) -> bool:
        return self._num_missing == 0

    def add(self, codes: GroupCodes, start: int) -> None:
        self.codes.append((codes, start))
        self._num_missing -= codes.shape[0]

    def add_bias(self, bias: Tensor, start: int) -> None:
        self.biases.append((bias, start))

    def order(self) -> ColumnOrder | None:
        """The order that sorts the columns of all rows by group; None: they are sorted.

        Raises:
            ValueError: no order sorts all of them.
        """
        return order_of(codes for codes, _ in self.codes)
