"""Matrices of 8-bit numbers with a scale for a tensor, a row, a group or a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from taco_worker.quant.weight_format import CodeLayout, Shape, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

FLOAT_SCALES = ("F32", "F16", "BF16")
POWER_SCALES = ("U8", "F8_E8M0")


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """A matrix [n, k] of int8 or e4m3 numbers, one a byte.

    Readers multiply in the type of the scales. The product here is the exact one, in float32.

    Attributes:
        weight, scale: suffixes of the tensors.
        rows, group: rows and adjacent columns that share a scale; the last ones may be fewer.
        scale_shape: as stored; it holds ceil(n / rows) * ceil(k / group) scales in this order.
        scale_dtypes: POWER_SCALES are E8M0 exponents.
        zero_point: suffix of int8 numbers that are subtracted, in the shape of the scales.
    """

    n: int
    k: int
    kind: Literal["int8", "e4m3"]
    rows: int
    group: int
    scale_shape: Shape
    weight: str = ".weight"
    scale: str = ".weight_scale"
    scale_dtypes: tuple[str, ...] = FLOAT_SCALES
    zero_point: str | None = None

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        dtype = "I8" if self.kind == "int8" else "F8_E4M3"
        tensors = {
            self.weight: StoredTensor((self.n, self.k), (dtype,)),
            self.scale: StoredTensor(self.scale_shape, self.scale_dtypes),
        }
        if self.zero_point is not None:
            tensors[self.zero_point] = StoredTensor(self.scale_shape, ("I8",))
        return tensors

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout(
            self.kind,
            min(self.group, self.k),
            has_zeros=self.zero_point is not None,
            scale_type="F8_E8M0" if self.scale_dtypes == POWER_SCALES else "F32",
        )

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings.small_floats import decode_scales, e4m3_codes

        weight = tensors[self.weight]
        codes = weight if self.kind == "int8" else e4m3_codes(self.weight[1:] or "weight", weight)
        scales = decode_scales(self.scale.strip("._"), tensors[self.scale])
        zeros = None if self.zero_point is None else tensors[self.zero_point].to(torch.int16)
        return GroupCodes(
            self.kind,
            codes,
            self.layout.group,
            self._of_rows(scales),
            None if zeros is None else self._of_rows(zeros),
        )

    def _of_rows(self, numbers: Tensor) -> Tensor:
        """The scales or zero points of each row, [n, groups]."""
        num_groups = -(-self.k // self.group)
        grid = numbers.reshape(-(-self.n // self.rows), num_groups)
        # A block of settings may have more rows than any matrix.
        return grid.repeat_interleave(min(self.rows, self.n), dim=0)[: self.n].contiguous()
