"""Random matrices of group codes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from taco_kernels.code_layout import ScaleType, StepType
from taco_kernels.group_codes import CodeKind, GroupCodes, ScaleSteps

NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.5250731, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ]
)


def random_codes(
    n: int,
    k: int,
    kind: CodeKind,
    group: int,
    *,
    offset: str = "none",
    scale_type: ScaleType = "F32",
    has_column_groups: bool = False,
    bits: int = 8,
    seed: int = 0,
) -> GroupCodes:
    """Codes whose scales and minima are exact in `scale_type`.

    Args:
        offset: "none", "zeros" or "minima".
        bits: of int8 codes, as of a CodeLayout.
    """
    random = torch.Generator().manual_seed(seed)
    shape, grouped = (n, k), (n, -(-k // group))
    codes = torch.randint(0, 256, shape, generator=random).to(torch.uint8)
    if kind in ("int4", "table16"):
        codes &= 15
    elif kind == "int8" and bits == 8:
        codes = codes.view(torch.int8)
    elif kind == "int8":
        first = 0 if offset == "minima" else 1 << bits - 1
        codes = ((codes & (1 << bits) - 1).int() - first).to(torch.int8)
    else:
        codes[(codes & 0x7F) == 0x7F] = 0
    limit = 16 if kind == "int4" else 128
    zeros = torch.randint(0 if kind == "int4" else -limit, limit + 1, grouped, generator=random)
    columns = torch.arange(k, dtype=torch.int32) // group
    return GroupCodes(
        kind,
        codes,
        group,
        _exact(torch.randn(grouped, generator=random).exp() / 64, scale_type),
        zeros.to(torch.int16) if offset == "zeros" else None,
        _exact(torch.randn(grouped, generator=random).exp() / 8, scale_type)
        if offset == "minima"
        else None,
        NF4 if kind == "table16" else None,
        columns[torch.randperm(k, generator=random)] if has_column_groups else None,
    )


def _exact(values: Tensor, scale_type: ScaleType) -> Tensor:
    if scale_type == "F8_E8M0":
        return values.log2().round().exp2()
    dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    return values.to(dtypes[scale_type]).float()


def random_step_codes(
    n: int,
    k: int,
    kind: CodeKind,
    group: int,
    groups_per_unit: int,
    step_type: StepType,
    *,
    has_minima: bool,
    bits: int = 8,
    seed: int = 0,
) -> GroupCodes:
    """Codes whose scales, and minima, are steps of units in float16, as in GGUF's K types.

    Args:
        k: a multiple of the columns that share a unit.
    """
    random = torch.Generator().manual_seed(seed)
    offset = "minima" if has_minima else "none"
    codes = random_codes(n, k, kind, group, offset=offset, bits=bits, seed=seed)
    steps = torch.randint(0, 256, (n, k // group), generator=random).to(torch.uint8)
    if step_type == "I8":
        steps = steps.view(torch.int8)
    elif step_type == "F8_E4M3":
        steps = (steps & 0x77).view(torch.float8_e4m3fn)
    units = (n, k // group // groups_per_unit)
    scales = ScaleSteps(
        groups_per_unit, steps, _exact(torch.rand(units, generator=random) / 4096, "F16")
    )
    if has_minima:
        scales = replace(
            scales,
            minimum_steps=torch.randint(0, 64, steps.shape, generator=random).to(torch.uint8),
            minimum_units=_exact(torch.rand(units, generator=random) / 64, "F16"),
        )
    return replace(codes, scales=scales.scales(), minima=scales.minima(), steps=scales)
