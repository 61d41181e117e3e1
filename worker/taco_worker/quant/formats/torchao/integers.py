"""torchao's integer tensors: int8 and narrower codes in bytes, and packed 4-bit codes.

Sources: torchao 0.18, `quantization/quantize_/workflows`; for the tiles of tensor cores,
`matrix_to_m16n8k16_Bint4_layout` of torch's `native/cuda/int4mm.cu`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.formats.torchao.names import (
    QDATA,
    SCALE,
    SCALE_AND_ZERO,
    ZERO_POINT,
    check_finite,
)
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_FLOATS = ("F32", "BF16", "F16")
_TILE_ROWS, _TILE_COLUMNS = 8, 16
_INT4_MIDDLE = 8


@dataclass(frozen=True, slots=True)
class IntegerTensor:
    """`Int8Tensor` or `IntxUnpackedToInt8Tensor`: int8 codes [n, k], one a byte.

    A number is `(code - zero_point) * scale`, in float32; torchao rounds it to the dtype of the
    model.

    Attributes:
        rows, columns: of the blocks that share a scale.
        has_zeros: some zero point is not 0.
        stores_zeros: zero points are stored, even if all are 0.
    """

    n: int
    k: int
    rows: int
    columns: int
    has_zeros: bool
    stores_zeros: bool = True

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        blocks = (self.n // self.rows, self.k // self.columns)
        tensors = {
            QDATA: StoredTensor((self.n, self.k), ("I8",)),
            SCALE: StoredTensor(blocks, _FLOATS),
        }
        if self.stores_zeros:
            tensors[ZERO_POINT] = StoredTensor(blocks, ("I8", *_FLOATS))
        return tensors

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("int8", self.columns, has_zeros=self.has_zeros)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.group_codes import GroupCodes

        scales = tensors[SCALE].float().repeat_interleave(self.rows, dim=0)
        check_finite(scales)
        zeros = None
        if self.has_zeros:
            zeros = _whole(tensors[ZERO_POINT]).repeat_interleave(self.rows, dim=0)
        return GroupCodes("int8", tensors[QDATA], self.columns, scales, zeros)


@dataclass(frozen=True, slots=True)
class Int4Tensor:
    """`Int4Tensor`: signed 4-bit codes [n, k / 2], the even column in a byte's low bits.

    A number is `code * scale + zero_point`, in float32. The codes are kept as unsigned ones, of a
    table: `unsigned code * scale - (8 * scale - zero_point)` would round once more.
    """

    n: int
    k: int
    group: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        groups = (-(-self.k // self.group), self.n)
        return {
            QDATA: StoredTensor((self.n, self.k // 2), ("I8", "U8")),
            SCALE: StoredTensor(groups, _FLOATS),
            ZERO_POINT: StoredTensor(groups, _FLOATS),
        }

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("table16", self.group, has_minima=True)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        packed = tensors[QDATA].contiguous().view(torch.uint8)
        signed = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
        scales, zeros = (tensors[name].float().t().contiguous() for name in (SCALE, ZERO_POINT))
        return _with_zeros(signed ^ _INT4_MIDDLE, self.group, scales, zeros)


@dataclass(frozen=True, slots=True)
class TiledInt4Tensor:
    """`Int4TilePackedTo4dTensor`: 4-bit codes in the order of a tensor core's registers.

    The codes are int32 [n / 8, k / (16 * tiles), 32, tiles / 2], of a matrix that is padded with
    further rows and columns; a number is `(code - 8) * scale + zero`, in float32.

    Attributes:
        shape: of the stored codes.
    """

    n: int
    k: int
    group: int
    shape: tuple[int, int, int, int]

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        padded_n, padded_k = self._padded
        return {
            QDATA: StoredTensor(self.shape, ("I32",)),
            SCALE_AND_ZERO: StoredTensor((padded_k // self.group, padded_n, 2), ("BF16", "F16")),
        }

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("table16", self.group, has_minima=True)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        row_tiles, outer, _, inner = self.shape
        shifts = torch.arange(0, 32, 4, dtype=torch.int32)
        nibbles = (tensors[QDATA][..., None] >> shifts) & 15
        # Lane 4 * r + c of a warp has columns 2 * c, 2 * c + 8 and those after them, in row r, of
        # two tiles: its nibbles are [odd column, second tile, column + 8].
        parts = nibbles.view(row_tiles, outer, _TILE_ROWS, 4, inner, 2, 2, 2)
        codes = parts.permute(0, 2, 1, 4, 6, 7, 3, 5).reshape(self._padded).to(torch.uint8)
        num_groups = -(-self.k // self.group)
        stored = tensors[SCALE_AND_ZERO][:num_groups, : self.n].float()
        scales, zeros = (part.t().contiguous() for part in stored.unbind(2))
        return _with_zeros(codes[: self.n, : self.k].contiguous(), self.group, scales, zeros)

    @property
    def _padded(self) -> tuple[int, int]:
        row_tiles, outer, _, inner = self.shape
        return row_tiles * _TILE_ROWS, outer * inner * 2 * _TILE_COLUMNS


def _with_zeros(codes: Tensor, group: int, scales: Tensor, zeros: Tensor) -> GroupCodes:
    """The numbers `(code - 8) * scale + zero`."""
    import torch

    from taco_kernels.group_codes import GroupCodes

    check_finite(scales)
    check_finite(zeros, "zero points")
    table = torch.arange(16) - float(_INT4_MIDDLE)
    return GroupCodes("table16", codes, group, scales, minima=-zeros, table=table)


def _whole(zeros: Tensor) -> Tensor:
    """Zero points as int16."""
    import torch

    check_finite(zeros.float(), "zero points")
    whole = zeros.float().round()
    if not torch.equal(whole, zeros.float()) or bool((whole.abs() > 255).any()):
        raise ValueError("zero points are not integers from -255 to 255")
    return whole.to(torch.int16)
