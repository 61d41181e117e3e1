"""torchao's `Float8Tensor`: 8-bit floats with a scale for the matrix, a row or a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.formats.torchao.names import QDATA, SCALE, check_finite
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

E4M3, E5M2 = "F8_E4M3", "F8_E5M2"


@dataclass(frozen=True, slots=True)
class Float8Tensor:
    """A matrix [n, k] of 8-bit floats; a number is `float8 * scale`, in float32.

    Attributes:
        dtype: of the stored tensor, in the words of safetensors.
        scale_shape: of the stored scales: [], [1], or [n / rows, k / columns] of blocks.
    """

    n: int
    k: int
    dtype: str
    scale_shape: tuple[int, ...]

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {
            QDATA: StoredTensor((self.n, self.k), (self.dtype,)),
            SCALE: StoredTensor(self.scale_shape, ("F32", "BF16", "F16")),
        }

    @property
    def layout(self) -> CodeLayout | None:
        """None for E5M2, whose numbers codes cannot hold."""
        return CodeLayout("e4m3", self._columns) if self.dtype == E4M3 else None

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        scales = self._scales(tensors)
        numbers = tensors[QDATA].float()
        check_finite(numbers, "8-bit floats")
        return numbers * scales.repeat_interleave(self._columns, dim=1)

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes

        codes = tensors[QDATA]
        check_finite(codes.float(), "8-bit floats")
        scales = self._scales(tensors)
        return GroupCodes("e4m3", codes.view(torch.uint8), self._columns, scales)

    @property
    def _columns(self) -> int:
        return self.k // self.scale_shape[1] if len(self.scale_shape) == 2 else self.k

    def _scales(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """float32 [n, groups]."""
        scales = tensors[SCALE].float()
        check_finite(scales)
        if len(self.scale_shape) < 2:
            return scales.reshape(1, 1).repeat(self.n, 1)
        return scales.repeat_interleave(self.n // self.scale_shape[0], dim=0)
