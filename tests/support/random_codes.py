"""Random matrices of codes, of every kind."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.group_codes import CodeKind, GroupCodes

KINDS: tuple[CodeKind, ...] = ("int4", "int8", "e4m3", "table16")


def random_codes(
    kind: CodeKind,
    n: int,
    k: int,
    group: int,
    *,
    zeros: tuple[int, int] | None = None,
    has_minima: bool = False,
    has_wide_scales: bool = False,
    group_of_column: Tensor | None = None,
    seed: int = 0,
) -> GroupCodes:
    """
    Args:
        zeros: the least and the greatest.
        has_wide_scales: scales and minima are any float32 numbers, instead of float16's.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def floats(greatest: float) -> Tensor:
        numbers = torch.rand(grouped, generator=generator) * greatest + 1e-4
        return numbers if has_wide_scales else numbers.half().float()

    grouped = (n, -(-k // group))
    low, high = {"int8": (-128, 128), "e4m3": (0, 256)}.get(kind, (0, 16))
    codes = integers(low, high, n, k).to(torch.int8 if kind == "int8" else torch.uint8)
    if kind == "e4m3":
        codes[codes & 127 == 127] = 126  # those are NaN
    return GroupCodes(
        kind,
        codes,
        group,
        floats(0.01),
        zeros=None if zeros is None else integers(zeros[0], zeros[1] + 1, *grouped).short(),
        minima=floats(0.1) if has_minima else None,
        table=torch.randn(16, generator=generator) if kind == "table16" else None,
        group_of_column=group_of_column,
    )


def shuffled_groups(k: int, group: int, *, seed: int = 0) -> Tensor:
    """Groups of `group` columns each, of columns in a random order (act-order)."""
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    return (torch.arange(k) // group)[order].int()
