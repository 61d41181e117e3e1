"""The 4-bit formats of bitsandbytes: blocks of the flattened matrix, with a scale each.

Source: bitsandbytes 0.50, `functional.get_4bit_type` and `QuantState`; NF4 is the data type of
QLoRA (https://arxiv.org/abs/2305.14314, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_FP4_TWELFTHS = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
FP4 = tuple(sign * number / 12 for sign in (1, -1) for number in _FP4_TWELFTHS)
TABLES = {"nf4": NF4, "fp4": FP4}
"""The numbers of the codes, by type."""

WEIGHT, ABSMAX, QUANT_MAP = ".weight", ".weight.absmax", ".weight.quant_map"
NESTED_ABSMAX, NESTED_MAP = ".weight.nested_absmax", ".weight.nested_quant_map"
STATE = ".weight.quant_state.bitsandbytes__"

# Columns of a group of codes, at least: scales of smaller groups would outweigh the codes.
_MIN_GROUP = 32
_ITEM_BYTES = {"U8": 1, "I8": 1, "F16": 2, "BF16": 2, "F32": 4}
STORAGE_TYPES = tuple(_ITEM_BYTES)


def group_of(k: int, block_size: int) -> int | None:
    """Columns of a row that lie in one block wherever the row starts; None: too few."""
    group = math.gcd(k, block_size)
    return group if group >= min(_MIN_GROUP, k) else None


@dataclass(frozen=True, slots=True)
class Nested:
    """Scales that are 8-bit codes themselves, in blocks.

    A scale is `map[code] * nested_absmax[block] + offset`.
    """

    block_size: int
    offset: float


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [n, k] whose numbers, row after row, are cut into blocks of `block_size`.

    A byte holds two codes, the first in its high bits.

    Attributes:
        kind: nf4 or fp4.
        storage: the type of the stored tensor, whose bytes are those of the codes.
        nested: None: scales are stored as float32.
        has_map: the numbers of the codes are stored too; as bitsandbytes does, `kind` decides.
    """

    n: int
    k: int
    kind: str
    block_size: int
    storage: str = "U8"
    nested: Nested | None = None
    has_map: bool = True

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        num_blocks = -(-self.n * self.k // self.block_size)
        num_items = -(-self.n * self.k // 2) // _ITEM_BYTES[self.storage]
        tensors = {
            WEIGHT: StoredTensor((num_items, 1), (self.storage,)),
            ABSMAX: StoredTensor((num_blocks,), ("F32" if self.nested is None else "U8",)),
            STATE + self.kind: StoredTensor((None,), ("U8",)),
        }
        if self.has_map:
            tensors[QUANT_MAP] = StoredTensor((16,), ("F32",))
        if self.nested is not None:
            num_nested = -(-num_blocks // self.nested.block_size)
            tensors[NESTED_ABSMAX] = StoredTensor((num_nested,), ("F32",))
            tensors[NESTED_MAP] = StoredTensor((256,), ("F32",))
        return tensors

    @property
    def layout(self) -> CodeLayout | None:
        """None if blocks cross rows in a way that leaves groups of few columns."""
        group = group_of(self.k, self.block_size)
        return None if group is None else CodeLayout("table16", group)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        import torch

        size = self.n * self.k
        scales = self._scales(tensors).repeat_interleave(self.block_size)[:size]
        table = torch.tensor(TABLES[self.kind])
        values = table[self._codes(tensors).int()] * scales
        return values.view(self.n, self.k)

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes

        group = group_of(self.k, self.block_size)
        assert group is not None
        blocks = torch.arange(0, self.n * self.k, group) // self.block_size
        return GroupCodes(
            "table16",
            self._codes(tensors).view(self.n, self.k),
            group,
            self._scales(tensors)[blocks].view(self.n, -1),
            table=torch.tensor(TABLES[self.kind]),
        )

    def _codes(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """uint8 [n * k]."""
        import torch

        packed = tensors[WEIGHT].contiguous().flatten().view(torch.uint8)
        return torch.stack((packed >> 4, packed & 15), dim=-1).flatten()[: self.n * self.k]

    def _scales(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """float32 [blocks]."""
        import torch

        from taco_worker.quant.encodings.small_floats import LARGEST_SCALE

        scales = tensors[ABSMAX]
        if self.nested is not None:
            numbers = tensors[NESTED_MAP][scales.int()]
            factors = tensors[NESTED_ABSMAX].repeat_interleave(self.nested.block_size)
            scales = numbers * factors[: scales.numel()] + torch.tensor(self.nested.offset)
        if not bool(scales.isfinite().all()):
            raise ValueError("absmax has values that are not finite")
        if not bool((scales.abs() < LARGEST_SCALE).all()):
            raise ValueError("absmax has numbers so large that products overflow")
        return scales
