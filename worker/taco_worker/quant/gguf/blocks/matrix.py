"""Matrices of GGUF's quantized types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.gguf.blocks.block_types import BlockType
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

SUFFIX = ".weight"

_PANEL = 16  # rows that kernels pack together
_PART = 2**22  # codes that are decoded at once: their temporary arrays take several times as much


@dataclass(frozen=True, slots=True)
class GgufMatrix:
    """A matrix [n, k] of blocks: one tensor of bytes, whose rows are the matrix's.

    Raises:
        ValueError: a row of k columns is not a whole number of blocks.
    """

    type: BlockType
    n: int
    k: int

    def __post_init__(self) -> None:
        if self.k % self.type.columns:
            raise ValueError(
                f"{self.type.name} stores blocks of {self.type.columns} columns, and the matrix "
                f"has {self.k}"
            )

    @property
    def row_bytes(self) -> int:
        return self.k // self.type.columns * self.type.size

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {SUFFIX: StoredTensor((self.n, self.row_bytes), ("U8",))}

    @property
    def layout(self) -> CodeLayout:
        return self.type.layout

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.gguf.blocks.decoding import decode

        stored = tensors[SUFFIX]
        decoded = decode(self.type.name, stored.unflatten(-1, (-1, self.type.size)))
        scales, minima, zeros, table = decoded.scales.flatten(1), decoded.minima, None, None
        minima = None if minima is None else minima.flatten(1)
        for numbers in (scales, minima):
            if numbers is not None and not numbers.isfinite().all():
                raise ValueError("its scales are not finite")
        if decoded.zero is not None:
            zeros = torch.full(scales.shape, decoded.zero, dtype=torch.int16)
        if decoded.table is not None:
            table = torch.tensor(decoded.table, dtype=torch.float32)
            if not (scales * table.abs().max()).isfinite().all():
                raise ValueError("its scales are too large")
        return GroupCodes(
            self.layout.kind,
            decoded.codes.flatten(1),
            self.layout.group,
            scales,
            zeros=zeros,
            minima=minima,
            table=table,
            steps=None if decoded.steps is None else decoded.steps.of_rows(),
        )

    def codes_of_parts(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, GroupCodes]]:
        stored = tensors[SUFFIX]
        # Those of all rows may fit into a smaller type.
        is_known = self.layout.scale_type != "F32"
        count = max(_PART // self.k // _PANEL * _PANEL, _PANEL) if is_known else self.n
        for first in range(0, self.n, count):
            yield first, self.codes({SUFFIX: stored[first : first + count]})
