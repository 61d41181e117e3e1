"""torchao's `MXTensor` and `NVFP4Tensor`: small floats with a scale for adjacent columns of a row.

Sources: torchao 0.18, `prototype/mx_formats`; OCP Microscaling Formats 1.0, section 6. Where
`is_swizzled_scales` is set, scales lie as tensor cores read them (cuBLAS, "1D block scaling
factors layout"): in tiles of 128 rows by 4 groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.encodings.scaled_matrix import POWER_SCALES
from taco_worker.quant.encodings.two_level_scales import scale_steps, two_level_layout
from taco_worker.quant.formats.torchao.names import QDATA, SCALE, TENSOR_SCALE, check_finite
from taco_worker.quant.weight_format import CodeLayout, Shape, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import CodeKind, GroupCodes, ScaleSteps

# Names of the elements in torchao's metadata, and their types in safetensors files.
ELEMENTS = {
    "float4_e2m1fn_x2": "U8",
    "fp6_e2m3": "U8",
    "fp6_e3m2": "U8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
FP4 = "float4_e2m1fn_x2"
_FP6_FORMS = {"fp6_e2m3": (2, 3), "fp6_e3m2": (3, 2)}  # bits of exponent and mantissa
_FP6_CODES = 64
_TILE_ROWS, _TILE_GROUPS = 128, 4


@dataclass(frozen=True, slots=True)
class BlockFloats:
    """A matrix [n, k]; a number is `element * scale`, in float32.

    Attributes:
        elements: one of ELEMENTS; two of 4 bits lie in a byte, the even column in its low bits, and
            one of 6 bits lies in a byte.
        group: columns that share a scale; it divides k.
        is_swizzled: scales lie in tiles.
        has_power_scales: scales are E8M0 (MX); else they are E4M3 (NVFP4).
        has_tensor_scale: E4M3 scales are multiplied by one of the whole matrix, in float32.
    """

    n: int
    k: int
    elements: str
    group: int
    is_swizzled: bool
    has_power_scales: bool
    has_tensor_scale: bool = False

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        columns = self.k // 2 if self.elements == FP4 else self.k
        scale_types = POWER_SCALES if self.has_power_scales else ("F8_E4M3",)
        tensors = {
            QDATA: StoredTensor((self.n, columns), (ELEMENTS[self.elements],)),
            SCALE: StoredTensor(self._scale_shape, scale_types),
        }
        if self.has_tensor_scale:
            tensors[TENSOR_SCALE] = StoredTensor((), ("F32",))
        return tensors

    @property
    def layout(self) -> CodeLayout | None:
        """None for E5M2, whose numbers codes cannot hold. Those of 6 bits are also E4M3 numbers."""
        if self.elements == "float8_e5m2":
            return None
        kind: CodeKind = "table16" if self.elements == FP4 else "e4m3"
        if self.has_power_scales:
            return CodeLayout(kind, self.group, scale_type="F8_E8M0")
        return two_level_layout(kind, self.group, self._num_groups)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        if self.layout is not None:
            return self.codes(tensors).values()
        numbers = tensors[QDATA].float()
        check_finite(numbers, "8-bit floats")
        return numbers * self._scales(tensors).repeat_interleave(self.group, dim=1)

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings import small_floats

        scales, stored = self._scales(tensors), tensors[QDATA]
        if self.elements == FP4:
            return GroupCodes(
                "table16",
                small_floats.unpack_nibbles(stored),
                self.group,
                scales,
                table=torch.tensor(small_floats.E2M1),
                steps=self._steps(tensors),
            )
        if self.elements in _FP6_FORMS:
            if bool((stored >= _FP6_CODES).any()):
                raise ValueError("6-bit floats have values of more than 6 bits")
            numbers = torch.tensor(small_floats.positive_floats(*_FP6_FORMS[self.elements]))
            floats = torch.cat((numbers, -numbers)).to(torch.float8_e4m3fn).view(torch.uint8)
            codes = floats[stored.int()]
        else:
            codes = small_floats.e4m3_codes("8-bit floats", stored)
        return GroupCodes("e4m3", codes, self.group, scales)

    @property
    def _num_groups(self) -> int:
        return self.k // self.group

    @property
    def _scale_shape(self) -> Shape:
        if not self.is_swizzled:
            return self.n, self._num_groups
        # A tile of 128 by 4 scales is stored as 32 by 16.
        rows, groups = -(-self.n // _TILE_ROWS), -(-self._num_groups // _TILE_GROUPS)
        return rows * _TILE_ROWS // 4, groups * _TILE_GROUPS * 4

    def _scales(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """float32 [n, groups]."""
        from taco_worker.quant.encodings import small_floats

        scales = small_floats.decode_scales("scales", self._in_order(tensors[SCALE]))
        if not self.has_tensor_scale:
            return scales
        both = scales * tensors[TENSOR_SCALE].reshape(())
        return small_floats.checked_scales("scales with per_tensor_scale", both)

    def _steps(self, tensors: Mapping[str, Tensor]) -> ScaleSteps | None:
        """The same scales as stored, of NVFP4."""
        import torch

        if self.has_power_scales:
            return None
        whole = tensors[TENSOR_SCALE] if self.has_tensor_scale else torch.ones(())
        return scale_steps(self._in_order(tensors[SCALE]), whole, self.group)

    def _in_order(self, scales: Tensor) -> Tensor:
        """Stored scales as [n, groups]."""
        if not self.is_swizzled:
            return scales
        # Of a tile, row 32 * b + a is the b-th four of row a. Padding is not looked at.
        tiles = scales.reshape(-1, -(-self._num_groups // _TILE_GROUPS), 32, 4, 4)
        rows = tiles.permute(0, 3, 2, 1, 4).reshape(-(-self.n // _TILE_ROWS) * _TILE_ROWS, -1)
        return rows[: self.n, : self._num_groups].contiguous()
