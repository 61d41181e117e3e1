"""QQQ checkpoints: integers of 4 bits for products with 8-bit activations (arXiv 2406.09904).

    .B          int32 [k / 16, n * 2]         4-bit codes in tiles
    .s_channel  float32 [1, n]
    .s_group    float16 [k / group, n]        of matrices with groups

The codes have the order of Marlin's for 8-bit tensor cores. Without groups they are signed, and
the kernel reads them as the high half of a byte: the scales are a 16th. With groups the kernel
rounds code times group scale to an integer of 8 bits; these integers are the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.integers.layout import integer_layout
from taco_worker.quant.integers.rules import Rules
from taco_worker.quant.integers.settings import Settings
from taco_worker.quant.weight_format import CodeLayout, Quantization, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_CODES, _ROW_SCALES, _GROUP_SCALES = ".B", ".s_channel", ".s_group"
_EXTRA = (".workspace", ".reduce_buffer")


def read(config: Mapping[str, Any], model_dir: Path) -> Quantization:
    """The quantization that a `quantization_config` describes.

    Raises:
        ValueError: a setting is unknown or not allowed.
    """
    return Qqq(Rules.read(Settings(config)))


@dataclass(frozen=True, slots=True)
class Qqq:
    """A QQQ checkpoint."""

    rules: Rules
    method = "qqq"

    def __post_init__(self) -> None:
        """Raises ValueError for settings that no module can have."""
        for settings in self.rules.all_settings():
            if not settings.flag("sym", "is_sym", default=True):
                raise ValueError(f"QQQ checkpoints are symmetric, but {settings.name}.sym is false")
            _matrix(settings, 64, 16)

    def format_of(self, module: str, n: int, k: int) -> QqqMatrix | None:
        settings = self.rules.settings_of(module)
        return None if settings is None else _matrix(settings, n, k)

    def is_extra(self, name: str) -> bool:
        return name.endswith(_EXTRA)


def _matrix(settings: Settings, n: int, k: int) -> QqqMatrix:
    settings.bits((4,), "wbits", "bits", "w_bit")
    return QqqMatrix(n, k, settings.group_size("group_size", "groupsize", default=-1))


@dataclass(frozen=True, slots=True)
class QqqMatrix:
    """A matrix [n, k].

    Attributes:
        group_size: columns of a group; None: a row is one group.
    """

    n: int
    k: int
    group_size: int | None

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        if self.n % 64 or self.k % 16:
            raise ValueError(
                f"QQQ cannot store a matrix of {self.k} in and {self.n} out features: tiles have "
                "16 by 64"
            )
        if self._has_groups and self.k % self._group:
            raise ValueError(f"QQQ cannot store {self.k} in features in groups of {self._group}")

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        groups = (self.k // self._group, self.n) if self._has_groups else (0,)
        return {
            _CODES: StoredTensor((self.k // 16, self.n * 2), ("I32",)),
            _ROW_SCALES: StoredTensor((1, self.n), ("F32",)),
            _GROUP_SCALES: StoredTensor(groups, ("F16",), is_optional=not self._has_groups),
        }

    @property
    def layout(self) -> CodeLayout:
        if self._has_groups:
            return CodeLayout("int8", self.k)
        return integer_layout(4, self.k, has_zeros=True)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.bit_stream import unpack
        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.integers import tiles
        from taco_worker.quant.integers.codes import finite, symmetric_codes

        stored = unpack(tensors[_CODES], 4)
        scales = finite(tiles.row_scales(tensors[_ROW_SCALES]).T, "s_channel")
        if not self._has_groups:
            codes = tiles.w4a8_row_codes(stored) ^ 8  # signed codes in two's complement
            return symmetric_codes(codes, scales * 16, bits=4, layout=self.layout)
        codes = tiles.w4a8_group_codes(stored)
        return GroupCodes("int8", self._rounded(codes, tensors[_GROUP_SCALES]), self.k, scales)

    @property
    def _group(self) -> int:
        return self.k if self.group_size is None else min(self.group_size, self.k)

    @property
    def _has_groups(self) -> bool:
        return self._group < self.k

    def _rounded(self, codes: Tensor, stored_scales: Tensor) -> Tensor:
        """The integers of 8 bits, int8 [n, k]. The kernel rounds halves to even.

        Raises:
            ValueError: scales are not finite, or too large for 8 bits.
        """
        import torch

        from taco_worker.quant.integers import tiles
        from taco_worker.quant.integers.codes import finite

        scales = finite(tiles.group_scales(stored_scales).T, "s_group")
        products = (codes.unflatten(1, (-1, self._group)).float() - 8) * scales[..., None]
        integers = products.round().flatten(1)
        if bool((integers < -128).any()) or bool((integers > 127).any()):
            raise ValueError("codes times s_group do not fit in 8 bits")
        return integers.to(torch.int8)
