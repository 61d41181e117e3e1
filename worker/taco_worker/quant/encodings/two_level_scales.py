"""Scales of groups as E4M3 numbers times a float32 of the whole matrix (NVFP4).

Kept as they are stored, a byte each, they take a quarter of the memory of their float32 products.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taco_worker.quant.weight_format import CodeLayout

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import CodeKind, ScaleSteps

# Groups that share a copy of the matrix's scale, at most. It lies with their steps before their
# codes: few copies for little memory, and panels that follow each other closely.
_MAX_GROUPS_PER_UNIT = 16
_COLUMNS = 8  # steps need groups of multiples of it


def two_level_layout(kind: CodeKind, group: int, num_groups: int) -> CodeLayout:
    """The layout of codes with `scale_steps`, or with float32 scales where steps have no form."""
    if group % _COLUMNS:
        return CodeLayout(kind, group)
    return CodeLayout(
        kind, group, step_type="F8_E4M3", groups_per_unit=_groups_per_unit(num_groups)
    )


def scale_steps(stored: Tensor, whole: Tensor, group: int) -> ScaleSteps | None:
    """The steps of `two_level_layout`, whose scales are `stored * whole` in float32.

    Args:
        stored: E4M3 [n, number of groups].
        whole: one float32.
    """
    from taco_kernels.group_codes import ScaleSteps

    if group % _COLUMNS:
        return None
    n, num_groups = stored.shape
    per_unit = _groups_per_unit(num_groups)
    units = whole.reshape(1, 1).expand(n, num_groups // per_unit).contiguous()
    return ScaleSteps(per_unit, stored.contiguous(), units)


def _groups_per_unit(num_groups: int) -> int:
    return math.gcd(num_groups, _MAX_GROUPS_PER_UNIT)
