"""Reduction operations, under Horovod's names and numbers."""

from __future__ import annotations

from enum import IntEnum


class ReduceOp(IntEnum):
    """How the ranks' values are combined."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average, Sum, Adasum, Min, Max, Product = ReduceOp


def choose_op(op: int | None, average: bool | None) -> ReduceOp:
    """The operation of a call.

    Args:
        average: the deprecated argument of Horovod before 0.19.

    Raises:
        ValueError: both are given, or the operation is unknown.
    """
    if average is not None and op is not None:
        raise ValueError("give op or average, not both; average is deprecated")
    if average is not None:
        return Average if average else Sum
    try:
        return Average if op is None else ReduceOp(op)
    except ValueError:
        known = "Average, Sum, Adasum, Min, Max, Product"
        raise ValueError(f"op is {op!r}; it must be one of hvd.{{{known}}}") from None
