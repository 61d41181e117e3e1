"""The names of the tensors that torchao's safetensors files have for a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

QDATA, SCALE = "._weight_qdata", "._weight_scale"
TENSOR_SCALE = "._weight_per_tensor_scale"
ZERO_POINT, SCALE_AND_ZERO = "._weight_zero_point", "._weight_scale_and_zero"


def check_finite(numbers: Tensor, what: str = "scales") -> None:
    """Raises ValueError if a number is infinite, NaN, or so large that products overflow."""
    from taco_worker.quant.encodings.small_floats import LARGEST_SCALE

    if not bool(numbers.isfinite().all()):
        raise ValueError(f"{what} have values that are not finite")
    if not bool((numbers.abs() < LARGEST_SCALE).all()):
        raise ValueError(f"{what} are so large that products overflow")
