"""The int8 format of bitsandbytes (LLM.int8(), https://arxiv.org/abs/2208.07339): a scale a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

SCALES, ORDER = ".SCB", ".weight_format"
_WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A matrix [n, k] of int8 codes; `SCB` holds each row's greatest absolute number.

    A number is `code * (SCB / 127)`: one scale for products, and one rounding less than
    bitsandbytes' own `code * SCB * (1 / 127)`, from which it differs in the last bits.

    Attributes:
        has_order: the order of the codes is stored.
    """

    n: int
    k: int
    has_order: bool = True

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        tensors = {
            _WEIGHT: StoredTensor((self.n, self.k), ("I8",)),
            SCALES: StoredTensor((self.n,), ("F32",)),
        }
        if self.has_order:
            tensors[ORDER] = StoredTensor((), ("U8",))
        return tensors

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("int8", self.k)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings.small_floats import LARGEST_SCALE

        if self.has_order and int(tensors[ORDER]) != 0:
            raise ValueError(
                "weight_format is not 0: only codes in the order of rows are supported"
            )
        scales = tensors[SCALES]
        if not bool(scales.isfinite().all()):
            raise ValueError("SCB has values that are not finite")
        if not bool((scales.abs() < LARGEST_SCALE).all()):
            raise ValueError("SCB has numbers so large that products overflow")
        return GroupCodes("int8", tensors[_WEIGHT], self.k, scales[:, None] / 127)
