"""Matrices of 4-bit floats (E2M1), two a byte: NVFP4 and MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.encodings.scaled_matrix import POWER_SCALES
from taco_worker.quant.encodings.two_level_scales import scale_steps, two_level_layout
from taco_worker.quant.weight_format import CodeLayout, Shape, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

NVFP4_GROUP = 16
MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True)
class Fp4Matrix:
    """A matrix [n, k], the even column in a byte's low bits, with a scale for groups of columns.

    With a scale of the whole matrix (NVFP4), the groups' scales are e4m3 numbers, and a scale is
    the quotient or product of the two in float32. Without one (MXFP4) they are E8M0 exponents.

    Attributes:
        group: columns that share a scale; it divides k.
        packed, scale: suffixes of the tensors.
        matrix_scale: suffix of the matrix's scale, if it has one.
        matrix_scale_shape: as stored; it holds one number.
        divides: whether the groups' scales are divided by the matrix's; else multiplied.
    """

    n: int
    k: int
    group: int
    packed: str
    scale: str = ".weight_scale"
    matrix_scale: str | None = None
    matrix_scale_shape: Shape = (1,)
    divides: bool = False

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        dtypes = POWER_SCALES if self.matrix_scale is None else ("F8_E4M3",)
        tensors = {
            self.packed: StoredTensor((self.n, self.k // 2), ("U8",)),
            self.scale: StoredTensor((self.n, self.k // self.group), dtypes),
        }
        if self.matrix_scale is not None:
            tensors[self.matrix_scale] = StoredTensor(self.matrix_scale_shape, ("F32",))
        return tensors

    @property
    def layout(self) -> CodeLayout:
        if self.matrix_scale is None:
            return CodeLayout("table16", self.group, scale_type="F8_E8M0")
        if self.divides:  # a quotient is no product of two float32 numbers
            return CodeLayout("table16", self.group)
        return two_level_layout("table16", self.group, self.k // self.group)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings import small_floats

        name = self.scale.strip("._")
        scales, steps = small_floats.decode_scales(name, tensors[self.scale]), None
        if self.matrix_scale is not None:
            whole_name = self.matrix_scale.strip("._")
            # An infinite divisor would make zeros of all numbers.
            whole = small_floats.checked_scales(whole_name, tensors[self.matrix_scale]).reshape(())
            scales = scales / whole if self.divides else scales * whole
            scales = small_floats.checked_scales(f"{name} with {whole_name}", scales)
            if not self.divides:
                steps = scale_steps(tensors[self.scale], whole, self.group)
        return GroupCodes(
            "table16",
            small_floats.unpack_nibbles(tensors[self.packed]),
            self.group,
            scales,
            table=torch.tensor(small_floats.E2M1),
            steps=steps,
        )
