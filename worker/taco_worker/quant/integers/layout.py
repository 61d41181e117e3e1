"""The layout of codes of few bits; without torch, since it is known before tensors are read."""

from __future__ import annotations

from taco_worker.quant.weight_format import CodeLayout


def integer_layout(
    bits: int, group: int, *, has_zeros: bool, has_column_groups: bool = False
) -> CodeLayout:
    """The layout of `integer_codes`.

    Args:
        bits: up to 4, or 8.
        has_zeros: codes of 8 bits have zero points that differ from 128.
    """
    if bits <= 4:
        return CodeLayout("int4", group, has_zeros=True, has_column_groups=has_column_groups)
    return CodeLayout("int8", group, has_zeros=has_zeros, has_column_groups=has_column_groups)
