"""Matrices of integers of 1 to 8 bits, packed into 32-bit words (pack-quantized)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.encodings.packed_ints import num_words, unpack_words
from taco_worker.quant.encodings.scaled_matrix import FLOAT_SCALES
from taco_worker.quant.weight_format import CodeLayout, Shape, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_PACKED, _SCALE, _SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"
_ZERO_POINT, _GROUP_INDEX = ".weight_zero_point", ".weight_g_idx"


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] as words [n, words], integers along a row.

    An integer q is stored as q + 2 ** (bits - 1). Zero points are packed likewise, but along the
    rows: [words, groups]; those of a whole tensor are one int8.

    Attributes:
        group: columns that share a scale.
        scale_shape: [n, groups], or one number for the whole matrix.
        has_zeros: it has zero points.
        has_column_groups: it has the group of each column.
        has_shape: a tensor may hold [n, k]; that of stacked experts is not read.
    """

    n: int
    k: int
    bits: int
    group: int
    scale_shape: Shape
    has_zeros: bool
    has_column_groups: bool
    has_shape: bool = True

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        tensors = {
            _PACKED: StoredTensor((self.n, num_words(self.k, self.bits)), ("I32",)),
            _SCALE: StoredTensor(self.scale_shape, FLOAT_SCALES),
        }
        if self.has_shape:
            tensors[_SHAPE] = StoredTensor((2,), ("I64", "I32"), is_optional=True)
        if self.has_zeros and len(self.scale_shape) == 2:
            packed = (num_words(self.n, self.bits), self.scale_shape[1])
            tensors[_ZERO_POINT] = StoredTensor(packed, ("I32",))
        elif self.has_zeros:
            tensors[_ZERO_POINT] = StoredTensor(self.scale_shape, ("I8",))
        if self.has_column_groups:
            tensors[_GROUP_INDEX] = StoredTensor((self.k,), ("I32",))
        return tensors

    @property
    def layout(self) -> CodeLayout:
        is_small = self.bits <= 4
        return CodeLayout(
            "int4" if is_small else "int8",
            self.group,
            has_zeros=is_small or self.has_zeros,
            has_column_groups=self.has_column_groups,
        )

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.encodings.small_floats import decode_scales

        self._check_shape(tensors.get(_SHAPE))
        # Of int4, codes and zeros are as stored: the difference is the same.
        offset = 1 << (self.bits - 1)
        stored = tensors[_PACKED]
        if self.bits != 4 or self.k % 8:
            stored = unpack_words(stored, self.bits, self.k)
        zeros = self._stored_zeros(tensors.get(_ZERO_POINT), offset)
        if self.bits > 4:
            stored = (stored.to(torch.int16) - offset).to(torch.int8)
            zeros = None if zeros is None else zeros - offset
        elif zeros is None:
            zeros = torch.full((self.n, self._num_groups), offset, dtype=torch.int16)
        scales = decode_scales("weight_scale", tensors[_SCALE])
        return GroupCodes(
            self.layout.kind,
            stored,
            self.group,
            scales.reshape(-1, self._num_groups).expand(self.n, -1).contiguous(),
            zeros,
            group_of_column=self._column_groups(tensors) if self.has_column_groups else None,
        )

    @property
    def _num_groups(self) -> int:
        return -(-self.k // self.group)

    def _check_shape(self, shape: Tensor | None) -> None:
        if shape is not None and shape.tolist() != [self.n, self.k]:
            raise ValueError(f"weight_shape is {shape.tolist()}, should be {[self.n, self.k]}")

    def _stored_zeros(self, packed: Tensor | None, offset: int) -> Tensor | None:
        """int16 [n, groups], with the offset that stored integers have."""
        import torch

        if packed is None:
            return None
        if packed.dtype == torch.int8:
            whole = packed.reshape(1, 1).to(torch.int16) + offset
            return whole.expand(self.n, self._num_groups).contiguous()
        zeros = unpack_words(packed.t(), self.bits, self.n)
        return zeros.t().to(torch.int16).contiguous()

    def _column_groups(self, tensors: Mapping[str, Tensor]) -> Tensor:
        import torch

        groups = tensors[_GROUP_INDEX]
        if bool((groups == -1).all()):  # calibrated without an order
            return torch.arange(self.k, dtype=torch.int32) // self.group
        if bool(((groups < 0) | (groups >= self._num_groups)).any()):
            raise ValueError(f"weight_g_idx has numbers outside 0 to {self._num_groups - 1}")
        return groups
