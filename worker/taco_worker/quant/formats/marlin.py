"""Marlin checkpoints: symmetric integers in the order of the Marlin GPU kernels.

    .B   int32 [k / 16, n * 2]   4-bit codes in tiles
    .s   float16 [groups, n]     scales, reordered like the codes

With 2:4 sparsity two of each four columns of a row are stored, of 4 or 8 bits:

    .B_24    int32 [k / 32, n * bits / 2]  codes in tiles
    .B_meta  int16 [k / 32, n * 2]         which two columns
    .s       float16 [groups, n]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taco_worker.quant.integers.layout import integer_layout
from taco_worker.quant.integers.rules import Rules
from taco_worker.quant.integers.settings import Settings
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_CODES, _SCALES, _WORKSPACE = ".B", ".s", ".workspace"
_SPARSE_CODES, _POSITIONS = ".B_24", ".B_meta"


@dataclass(frozen=True, slots=True)
class Marlin:
    """A Marlin checkpoint."""

    rules: Rules
    method = "marlin"

    def __post_init__(self) -> None:
        """Raises ValueError for settings that no module can have."""
        for settings in self.rules.all_settings():
            _check_symmetric(settings)
            self._matrix(settings, 64, 16)

    def format_of(self, module: str, n: int, k: int) -> MarlinMatrix | None:
        settings = self.rules.settings_of(module)
        return None if settings is None else self._matrix(settings, n, k)

    def is_extra(self, name: str) -> bool:
        return name.endswith(_WORKSPACE)

    def _matrix(self, settings: Settings, n: int, k: int) -> MarlinMatrix:
        settings.bits((4,), "bits", "w_bit")
        return MarlinMatrix(n, k, settings.group_size("group_size", "q_group_size", default=-1))


@dataclass(frozen=True, slots=True)
class SparseMarlin:
    """A Marlin checkpoint with 2:4 sparsity."""

    rules: Rules
    method = "gptq_marlin_24"

    def __post_init__(self) -> None:
        """Raises ValueError for settings that no module can have."""
        for settings in self.rules.all_settings():
            _check_symmetric(settings)
            self._matrix(settings, 64, 32)

    def format_of(self, module: str, n: int, k: int) -> SparseMarlinMatrix | None:
        settings = self.rules.settings_of(module)
        return None if settings is None else self._matrix(settings, n, k)

    def is_extra(self, name: str) -> bool:
        return name.endswith(_WORKSPACE)

    def _matrix(self, settings: Settings, n: int, k: int) -> SparseMarlinMatrix:
        bits = settings.bits((4, 8), "bits", "w_bit")
        group_size = settings.group_size("group_size", "q_group_size", default=-1)
        return SparseMarlinMatrix(n, k, bits, group_size)


@dataclass(frozen=True, slots=True)
class MarlinMatrix:
    """A matrix [n, k] of 4-bit codes.

    Attributes:
        group_size: columns of a group; None: a row is one group.
        codes_name, scales_name: what the names of the tensors end with.
    """

    n: int
    k: int
    group_size: int | None
    codes_name: str = _CODES
    scales_name: str = _SCALES

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        _check_tiles(self.n, self.k, 16, self.group_size)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {
            self.codes_name: StoredTensor((self.k // 16, self.n * 2), ("I32",)),
            self.scales_name: StoredTensor((self.k // self._group, self.n), ("F16", "BF16")),
        }

    @property
    def layout(self) -> CodeLayout:
        return integer_layout(4, self._group, has_zeros=False)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.bit_stream import unpack
        from taco_worker.quant.integers import tiles
        from taco_worker.quant.integers.codes import symmetric_codes

        order = tiles.row_scales if self._group == self.k else tiles.group_scales
        return symmetric_codes(
            tiles.dense_codes(unpack(tensors[self.codes_name], 4)),
            order(tensors[self.scales_name]).T,
            bits=4,
            layout=self.layout,
        )

    @property
    def _group(self) -> int:
        return self.k if self.group_size is None else min(self.group_size, self.k)


@dataclass(frozen=True, slots=True)
class SparseMarlinMatrix:
    """A matrix [n, k] of which each four columns of a row have two codes; the others are 0.

    Attributes:
        group_size: columns of a group; None: a row is one group.
    """

    n: int
    k: int
    bits: int
    group_size: int | None

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        _check_tiles(self.n, self.k, 32, self.group_size)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {
            _SPARSE_CODES: StoredTensor((self.k // 32, self.n * self.bits // 2), ("I32",)),
            _POSITIONS: StoredTensor((self.k // 32, self.n * 2), ("I16",)),
            _SCALES: StoredTensor((self.k // self._group, self.n), ("F16", "BF16")),
        }

    @property
    def layout(self) -> CodeLayout:
        return integer_layout(self.bits, self._group, has_zeros=False)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.bit_stream import unpack
        from taco_worker.quant.integers import tiles
        from taco_worker.quant.integers.codes import symmetric_codes

        stored = tiles.sparse_codes(unpack(tensors[_SPARSE_CODES], self.bits), self.bits)
        positions = unpack(tiles.sparse_positions(tensors[_POSITIONS], self.n), 2).long()
        first, second = positions.view(-1, 2).unbind(-1)
        if not bool((first < second).all()):
            raise ValueError("B_meta names the same column twice, or two columns out of order")
        codes = torch.full((self.n * self.k // 4, 4), 2 ** (self.bits - 1), dtype=torch.uint8)
        codes.scatter_(1, positions.view(-1, 2), stored.view(-1, 2))
        scales = tensors[_SCALES]
        if self._group < self.k:
            scales = tiles.sparse_group_scales(scales)
        return symmetric_codes(
            codes.view(self.n, self.k), scales.T, bits=self.bits, layout=self.layout
        )

    @property
    def _group(self) -> int:
        return self.k if self.group_size is None else min(self.group_size, self.k)


def _check_symmetric(settings: Settings) -> None:
    if not settings.flag("sym", default=True):
        raise ValueError(f"Marlin checkpoints are symmetric, but {settings.name}.sym is false")


def _check_tiles(n: int, k: int, tile_rows: int, group_size: int | None) -> None:
    if n % 64 or k % tile_rows:
        raise ValueError(
            f"Marlin cannot store a matrix of {k} in and {n} out features: tiles have {tile_rows} "
            "by 64"
        )
    if group_size is not None and group_size < k and k % group_size:
        raise ValueError(f"Marlin cannot store {k} in features in groups of {group_size}")
