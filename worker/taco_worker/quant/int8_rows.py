"""Quantizes rows of numbers to 8-bit integers, with one scale a row."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.group_codes import GroupCodes

_GREATEST = 127


def int8_rows(rows: Tensor) -> GroupCodes:
    """The codes of rows [n, k]: a row's greatest magnitude becomes 127.

    Raises:
        ValueError: numbers are not finite.
    """
    values = rows.float()
    greatest = values.abs().amax(1, keepdim=True)
    if not bool(greatest.isfinite().all()):
        raise ValueError("numbers are not finite")
    scales = greatest / _GREATEST
    codes = (values / scales.clamp(min=torch.finfo(torch.float32).tiny)).round_()
    codes = codes.clamp_(-_GREATEST, _GREATEST).to(torch.int8)
    return GroupCodes("int8", codes, rows.shape[1], scales)
