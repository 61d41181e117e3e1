"""Checks that hold for every format of matrices."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from taco_worker.quant.weight_format import WeightFormat

_NAMES = {
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.uint8: "U8",
}


def fits(matrix: WeightFormat, stored: Mapping[str, Tensor]) -> bool:
    """Whether the format declares exactly these tensors."""
    declared = matrix.tensors
    required = {suffix for suffix, tensor in declared.items() if not tensor.is_optional}
    return required <= stored.keys() <= declared.keys() and all(
        tuple(tensor.shape) == declared[suffix].shape
        and _NAMES[tensor.dtype] in declared[suffix].dtypes
        for suffix, tensor in stored.items()
    )


def assert_exact(matrix: WeightFormat, stored: Mapping[str, Tensor], values: Tensor) -> None:
    """The format declares the tensors, and both of its results are `values`, bit by bit."""
    assert fits(matrix, stored), matrix.tensors
    assert torch.equal(matrix.dequantize(stored), values)
    layout = matrix.layout
    assert layout is not None
    codes = matrix.codes(stored)
    assert torch.equal(codes.values(), values)
    assert (codes.kind, codes.group) == (layout.kind, layout.group)
    assert layout.has_zeros == (codes.zeros is not None)
    assert layout.has_minima == (codes.minima is not None)
    assert layout.has_column_groups == (codes.group_of_column is not None)
    for array in (codes.code_bytes(), codes.scales, codes.zeros, codes.minima):
        assert array is None or array.is_contiguous()
