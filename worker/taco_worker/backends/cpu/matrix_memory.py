"""The memory of a model's matrices, some of which may be packed in it already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from taco_kernels.native.memory import Arena
from taco_worker.backends.cpu.early_weights import EarlyWeights
from taco_worker.backends.cpu.lowered_ops import MatrixType


class MatrixMemory:
    """Memory that matrices take parts of, or the memory of `EarlyWeights`."""

    def __init__(
        self,
        num_bytes: int,
        early_weights: EarlyWeights | None,
        instruction_set: str,
        types: Mapping[str, MatrixType],
    ) -> None:
        """Takes the early weights' memory, if that is enough and its packed matrices fit.

        Args:
            num_bytes: of all matrices.
            instruction_set: of the kernels.
            types: of the matrices, by parameter.
        """
        self._early_weights = None
        if early_weights is not None:
            if early_weights.fits(instruction_set, types, num_bytes):
                self._early_weights = early_weights
            else:
                early_weights.memory.release()
        early = self._early_weights
        self._arena = Arena(num_bytes, None if early is None else early.memory)
        self._arena.take(0 if early is None else early.num_placed_bytes)

    @property
    def whole(self) -> Tensor:
        """All of the memory, uint8."""
        return self._arena.whole

    def take(self, parameter: str, num_bytes: int) -> Tensor:
        """The memory of a matrix: uint8 [num_bytes], zeros, or rows that are packed already."""
        if self._early_weights is not None and parameter in self._early_weights.places:
            begin = self._early_weights.places[parameter]
            return self._arena.whole[begin : begin + num_bytes]
        return self._arena.take(num_bytes)

    def column_arrays(self, parameter: str) -> dict[str, Tensor]:
        """The `column_arrays` of a matrix with rows that are packed already."""
        early = self._early_weights
        found = {} if early is None else early.column_arrays.get(parameter, {})
        return {name: torch.from_numpy(array) for name, array in found.items()}

    def num_packed_rows(self, parameter: str, start: int) -> int:
        """How many rows are packed already, of a tensor that fills rows from `start` on."""
        early = self._early_weights
        return 0 if early is None else early.num_packed_rows(parameter, start)

    def map_file(self, file: Path) -> None:
        """As `Arena.map_file`."""
        self._arena.map_file(file)
