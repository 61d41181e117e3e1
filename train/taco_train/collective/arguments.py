"""Checks of what a caller passes, and the numbers that the C++ library has for it."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_train.collective.library import REDUCTIONS, TYPES


def type_of(tensor: Tensor) -> int:
    """Number of the tensor's dtype.

    Raises:
        ValueError: the tensor is not on the CPU, or of a dtype that is not communicated.
    """
    if tensor.device.type != "cpu":
        raise ValueError(f"the tensor is on {tensor.device}; it must be on the CPU")
    if tensor.layout != torch.strided or tensor.dtype not in TYPES:
        raise ValueError(f"tensors of {tensor.dtype} ({tensor.layout}) cannot be communicated")
    return TYPES[tensor.dtype]


def reduction_of(op: str) -> int:
    """Number of a reduction.

    Raises:
        ValueError: there is no such reduction.
    """
    if op not in REDUCTIONS:
        raise ValueError(f"op is {op!r}; it must be one of {list(REDUCTIONS)}")
    return REDUCTIONS[op]


def check_depth(depth: int) -> None:
    """Raises ValueError: there is no such number of levels."""
    if depth not in (1, 2, 3):
        raise ValueError(f"all_reduce: depth is {depth}; it must be 1, 2 or 3")


def equal_splits(tensor: Tensor, size: int) -> list[int]:
    """Rows for each of `size` ranks.

    Raises:
        ValueError: the first dimension does not divide evenly.
    """
    if tensor.shape[0] % size:
        raise ValueError(
            f"all_to_all: the first dimension, {tensor.shape[0]}, does not divide by {size} ranks; "
            "give splits"
        )
    return [tensor.shape[0] // size] * size
