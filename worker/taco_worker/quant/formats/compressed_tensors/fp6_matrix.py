"""Matrices of 6-bit floats (E2M3), four in three bytes (mxfp6-pack-quantized)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.encodings.scaled_matrix import POWER_SCALES
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_PACKED, _SCALE = ".weight_packed", ".weight_scale"
_GROUP = 32


@dataclass(frozen=True, slots=True)
class Fp6Matrix:
    """A matrix [n, k] as bytes [n, 3 k / 4], first column in the lowest bits.

    Scales of 32 columns are E8M0 exponents. E2M3 numbers are eighths from -60/8 to 60/8: int8
    codes with an eighth of the scale have the same products.
    """

    n: int
    k: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {
            _PACKED: StoredTensor((self.n, self.k * 3 // 4), ("U8",)),
            _SCALE: StoredTensor((self.n, self.k // _GROUP), POWER_SCALES),
        }

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("int8", _GROUP)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings.small_floats import E2M3_EIGHTHS, decode_scales

        first, second, third = tensors[_PACKED].int().unflatten(1, (-1, 3)).unbind(-1)
        words = first | second << 8 | third << 16
        floats = (words[..., None] >> torch.tensor([0, 6, 12, 18])) & 63
        eighths = torch.tensor(E2M3_EIGHTHS, dtype=torch.int8)
        scales = decode_scales("weight_scale", tensors[_SCALE])
        return GroupCodes("int8", eighths[floats.flatten(1).int()], _GROUP, scales / 8)
