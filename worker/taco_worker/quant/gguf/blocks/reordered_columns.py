"""Matrices of GGUF's quantized types whose columns the file has in another order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taco_worker.quant.gguf.blocks.matrix import GgufMatrix
from taco_worker.quant.gguf.rows import TiledHeads
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes


@dataclass(frozen=True, slots=True)
class ReorderedColumns:
    """A matrix [n, k] of blocks that lie across heads of columns in the file's order.

    It has codes if a head has whole groups: then groups move with their heads, and those of one
    block that go to several places each take the block's unit with them.
    """

    matrix: GgufMatrix
    order: TiledHeads

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self.matrix.tensors

    @property
    def layout(self) -> CodeLayout | None:
        layout = self.matrix.layout
        if self.order.size % layout.group:
            return None
        if layout.step_type is None:
            return layout
        return replace(layout, groups_per_unit=self._unit_columns // layout.group)

    @property
    def _unit_columns(self) -> int:
        """Columns of a block that stay together."""
        return math.gcd(self.matrix.type.columns, self.order.size)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self._restored(self.matrix.dequantize(tensors), 1)

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        return self._codes(self.matrix.codes(tensors))

    def codes_of_parts(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, GroupCodes]]:
        for first, codes in self.matrix.codes_of_parts(tensors):
            yield first, self._codes(codes)

    def _codes(self, codes: GroupCodes) -> GroupCodes:
        def groups(numbers: Tensor) -> Tensor:
            return self._restored(numbers, codes.group)

        def units(numbers: Tensor) -> Tensor:
            parts = self.matrix.type.columns // self._unit_columns
            return self._restored(numbers.repeat_interleave(parts, 1), self._unit_columns)

        steps = codes.steps
        if steps is not None:
            minimum_steps, minimum_units = steps.minimum_steps, steps.minimum_units
            steps = replace(
                steps,
                groups_per_unit=self._unit_columns // codes.group,
                steps=groups(steps.steps),
                units=units(steps.units),
                minimum_steps=None if minimum_steps is None else groups(minimum_steps),
                minimum_units=None if minimum_units is None else units(minimum_units),
            )
        return replace(
            codes,
            codes=self._restored(codes.codes, 1),
            scales=groups(codes.scales),
            zeros=None if codes.zeros is None else groups(codes.zeros),
            minima=None if codes.minima is None else groups(codes.minima),
            steps=steps,
        )

    def _restored(self, numbers: Tensor, columns: int) -> Tensor:
        """Numbers [n, k / columns] in Hugging Face's order, each of some columns."""
        order = replace(self.order, size=self.order.size // columns)
        return order.restore(numbers.T).T.contiguous()
