"""Checks of formats of quantized matrices."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from taco_kernels.cpu.coded_part import check_bits, layout_of
from taco_worker.models.tensor_files import dtype_name
from taco_worker.quant.weight_format import WeightFormat


def matrix_of(format_: WeightFormat | None, stored: Mapping[str, Tensor]) -> Tensor:
    """The matrix of tensors by suffix, which must be exactly those that the format names.

    Its codes must have the same bits and the promised layout.
    """
    assert format_ is not None
    for suffix, wanted in format_.tensors.items():
        if suffix not in stored:
            assert wanted.is_optional, suffix
            continue
        assert tuple(stored[suffix].shape) == wanted.shape, suffix
        assert dtype_name(stored[suffix]) in wanted.dtypes, suffix
    assert set(stored) <= set(format_.tensors)
    matrix = format_.dequantize(stored)
    assert matrix.dtype == torch.float32
    codes, layout = format_.codes(stored), format_.layout
    assert layout is not None
    assert layout_of(codes, layout.scale_type, layout.zero, layout.bits) == layout
    check_bits(codes, layout)
    assert torch.equal(codes.values().view(torch.int32), matrix.view(torch.int32))
    return matrix
