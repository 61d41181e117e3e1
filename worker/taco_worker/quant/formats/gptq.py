"""GPTQ checkpoints: integers of 2, 3, 4 or 8 bits, as AutoGPTQ and GPTQModel write them.

A matrix [n, k] is stored transposed and packed along k:

    .qweight  int32 [k * bits / 32, n]       codes
    .scales   float [groups, n]
    .qzeros   int32 [groups, n * bits / 32]  zero points, packed along n
    .g_idx    int32 [k]                      the group of each column

Files of checkpoint format "gptq" store zero points minus 1, those of "gptq_v2" store them as they
are. Files whose format is "marlin" or "marlin_24" are read by `marlin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.formats.marlin import Marlin, SparseMarlin
from taco_worker.quant.integers.layout import integer_layout
from taco_worker.quant.integers.rules import Rules
from taco_worker.quant.integers.settings import Settings
from taco_worker.quant.weight_format import CodeLayout, Quantization, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

BITS = (2, 3, 4, 8)
_FORMATS = ("gptq", "gptq_v2", "marlin", "marlin_24")
_WEIGHT, _SCALES, _ZEROS, _GROUPS = ".qweight", ".scales", ".qzeros", ".g_idx"


def read(config: Mapping[str, Any], model_dir: Path) -> Quantization:
    """The quantization that a `quantization_config` describes.

    Raises:
        ValueError: a setting is unknown or not allowed.
    """
    settings = Settings(config)
    method = settings.text("quant_method", default="gptq")
    by_method = {"marlin": "marlin", "gptq_marlin_24": "marlin_24"}.get(method, "gptq")
    stored_as = settings.choice(_FORMATS, "checkpoint_format", "format", default=by_method)
    if settings.flag("is_marlin_format", default=False):
        stored_as = "marlin"
    pack_dtype = settings.text("pack_dtype", default="int32")
    if pack_dtype != "int32":
        raise ValueError(
            f"GPTQ codes that are packed in {pack_dtype} are not supported, only int32"
        )
    rules = Rules.read(settings)
    if stored_as == "marlin":
        return Marlin(rules)
    if stored_as == "marlin_24":
        return SparseMarlin(rules)
    return Gptq(rules, has_v1_zeros=stored_as == "gptq")


@dataclass(frozen=True, slots=True)
class Gptq:
    """A GPTQ checkpoint."""

    rules: Rules
    has_v1_zeros: bool
    method = "gptq"

    def __post_init__(self) -> None:
        """Raises ValueError for settings that no module can have."""
        for settings in self.rules.all_settings():
            self._matrix(settings, 32, 32)

    def format_of(self, module: str, n: int, k: int) -> GptqMatrix | None:
        settings = self.rules.settings_of(module)
        return None if settings is None else self._matrix(settings, n, k)

    def is_extra(self, name: str) -> bool:
        return False

    def _matrix(self, settings: Settings, n: int, k: int) -> GptqMatrix:
        return GptqMatrix(
            n,
            k,
            settings.bits(BITS, "bits", "w_bit"),
            settings.group_size("group_size", "q_group_size", default=-1),
            is_symmetric=settings.flag("sym", default=True),
            # Files without the setting may have zero points of any value.
            has_zeros=not settings.flag("sym", default=False),
            has_ordered_columns=settings.flag("desc_act", default=False),
            has_v1_zeros=self.has_v1_zeros,
        )


@dataclass(frozen=True, slots=True)
class GptqMatrix:
    """A matrix [n, k] of GPTQ.

    Attributes:
        group_size: columns of a group, of which the last may have fewer; None: a row is one group.
        is_symmetric: the zero points are all half of the codes' range; the stored values then show
            whether 1 was subtracted, since some writers' "gptq" files are "gptq_v2".
        has_zeros: 8-bit codes may have other zero points.
        has_ordered_columns: `.g_idx` may put any column in any group ("desc_act").
        has_v1_zeros: 1 was subtracted from the zero points.
    """

    n: int
    k: int
    bits: int
    group_size: int | None
    is_symmetric: bool = True
    has_zeros: bool = True
    has_ordered_columns: bool = False
    has_v1_zeros: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        for size, name in ((self.k, "in"), (self.n, "out")):
            if size * self.bits % 32:
                raise ValueError(
                    f"{self.bits}-bit GPTQ cannot store {size} {name} features: their codes do not "
                    "fill 32-bit words"
                )

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        groups = self._num_groups
        return {
            _WEIGHT: StoredTensor((self.k * self.bits // 32, self.n), ("I32",)),
            _SCALES: StoredTensor((groups, self.n), ("F16", "BF16", "F32")),
            _ZEROS: StoredTensor((groups, self.n * self.bits // 32), ("I32",)),
            # Only of columns in order is the group known without it.
            _GROUPS: StoredTensor(
                (self.k,), ("I32", "I64"), is_optional=not self.layout.has_column_groups
            ),
        }

    @property
    def layout(self) -> CodeLayout:
        return integer_layout(
            self.bits,
            self._group,
            has_zeros=self.has_zeros,
            has_column_groups=self.has_ordered_columns and self._num_groups > 1,
        )

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.bit_stream import unpack
        from taco_worker.quant.integers.codes import integer_codes

        words = tensors[_WEIGHT].T
        return integer_codes(
            # Products pack words of eight codes as they are.
            words if self.bits == 4 else unpack(words, self.bits),
            self._zeros(unpack(tensors[_ZEROS], self.bits)).T,
            tensors[_SCALES].T,
            bits=self.bits,
            layout=self.layout,
            group_of_column=self._group_of_column(tensors.get(_GROUPS)),
        )

    @property
    def _group(self) -> int:
        return self.k if self.group_size is None else min(self.group_size, self.k)

    @property
    def _num_groups(self) -> int:
        return -(-self.k // self._group)

    def _zeros(self, stored: Tensor) -> Tensor:
        """The zero points. With 1 subtracted, 0 is stored as the largest code."""
        middle = 2 ** (self.bits - 1)
        was_subtracted = self.has_v1_zeros
        if self.is_symmetric:
            first = int(stored.flatten()[0])
            if first in (middle - 1, middle) and bool((stored == first).all()):
                was_subtracted = first < middle
        return (stored + int(was_subtracted)) & (2**self.bits - 1)

    def _group_of_column(self, stored: Tensor | None) -> Tensor | None:
        """`group_of_column` of the codes.

        Raises:
            ValueError: groups do not exist, or are out of order though the configuration denies it.
        """
        import torch

        if self._num_groups == 1:
            in_order = torch.zeros(self.k, dtype=torch.int32)
        else:
            in_order = torch.arange(self.k, dtype=torch.int32) // self._group
        groups = in_order if stored is None else stored
        low, high = int(groups.min()), int(groups.max())
        if low < 0 or high >= self._num_groups:
            raise ValueError(
                f"g_idx has group {low if low < 0 else high}; the groups are 0 to "
                f"{self._num_groups - 1}"
            )
        if self.layout.has_column_groups:
            return groups.to(torch.int32)
        if not torch.equal(groups.to(torch.int32), in_order):
            raise ValueError("g_idx reorders columns; set desc_act to true in the configuration")
        return None
