"""Orders of columns of coded matrices and their int8 operands (csrc/matmul/matrix.h)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from taco_kernels.cpu.structs import ColumnOrder as ColumnOrderStruct
from taco_kernels.group_codes import GroupCodes
from taco_kernels.panels import padded_k


class ColumnOrder:
    """An order in which the columns of a matrix are packed, and its operands written.

    Attributes:
        columns: int64 [k], the column at each place.
        struct: as kernels take it; points to this object's memory.
    """

    def __init__(self, columns: Tensor) -> None:
        """`columns` has each of 0 to k - 1 once."""
        k = columns.numel()
        self.columns = columns.long()
        self._padded = torch.full((padded_k(torch.int8.itemsize, k),), k, dtype=torch.int32)
        self._padded[:k] = columns
        self._places = torch.empty(k, dtype=torch.int32)
        self._places[self.columns] = torch.arange(k, dtype=torch.int32)
        self.struct = ColumnOrderStruct(self._padded.data_ptr(), self._places.data_ptr())

    @property
    def nbytes(self) -> int:
        return self._padded.nbytes + self._places.nbytes

    @property
    def key(self) -> bytes:
        """Equal for equal orders."""
        return self._places.numpy().tobytes()


def order_of(parts: Iterable[GroupCodes]) -> ColumnOrder | None:
    """The order that sorts the columns of all parts by group; None: they are sorted.

    Raises:
        ValueError: the groups of the parts are unlike, or a group has more columns than its size.
    """
    groups: Tensor | None = None
    for part in parts:
        if part.scales.shape[1] == 1:
            continue  # any order is as good
        own = _groups(part)
        if not torch.equal(own.sort().values, torch.arange(own.numel()) // part.group):
            raise ValueError(f"a group of {part.group} columns has another number of them")
        order = own.argsort(stable=True)
        if groups is not None and not torch.equal(order, groups):
            raise ValueError("rows of one matrix have unlike orders of columns")
        groups = order
    if groups is None or torch.equal(groups, torch.arange(groups.numel())):
        return None
    return ColumnOrder(groups)


def order_from(columns: Tensor) -> ColumnOrder:
    """The order with these `columns`, which are read from a file.

    Raises:
        ValueError: they are not each column once.
    """
    is_order = columns.dtype == torch.int64 and columns.ndim == 1
    if not is_order or not torch.equal(columns.sort().values, torch.arange(columns.numel())):
        raise ValueError("an order of columns does not have each column once")
    return ColumnOrder(columns)


def check_order(codes: GroupCodes, order: ColumnOrder | None) -> None:
    """Raises ValueError unless the columns of the codes are sorted by group in that order."""
    if codes.scales.shape[1] == 1:
        return
    groups = _groups(codes) if order is None else _groups(codes)[order.columns]
    if not torch.equal(groups, torch.arange(groups.numel()) // codes.group):
        raise ValueError("columns are not in the order of their groups")


def _groups(codes: GroupCodes) -> Tensor:
    if codes.group_of_column is None:
        return torch.arange(codes.shape[1]) // codes.group
    return codes.group_of_column.long()
