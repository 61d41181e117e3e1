"""DeepSpeed's 6- and 8-bit floats: an unquantized checkpoint that quant_config.json asks to round.

As vLLM's method of this name, which rounds each matrix at load with `FP_Quantize` of DeepSpeed
(`csrc/fp_quantizer/fp_quantize.cu`): groups of the flattened matrix have a float32 scale that maps
their greatest number to the greatest float. The floats have no subnormal numbers: what is smaller
than the smallest one becomes it. One difference: a 0 stays 0. DeepSpeed's kernel makes 2 * scale of
it, since it reads an exponent from the bits of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.modules import is_linear
from taco_worker.quant.weight_format import CodeLayout, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_WEIGHT = ".weight"
_MIN_GROUP = 32
_MAX_GROUP_SIZE = 2**24  # matrices are padded to whole groups


@dataclass(frozen=True, slots=True)
class Floats:
    """Floats with a sign, and without subnormal numbers, infinities and NaN.

    Attributes:
        mantissa_bits: without the leading 1.
        smallest: exponent of the smallest number; its mantissa is 1.
        largest: the greatest number.
    """

    mantissa_bits: int
    smallest: int
    largest: float


_FLOATS = {6: Floats(2, -2, 28.0), 8: Floats(3, -6, 480.0)}


@dataclass(frozen=True, slots=True)
class DeepSpeedFP:
    """A checkpoint whose linear layers are rounded to 6 or 8 bits as they are loaded."""

    bits: int
    group_size: int
    method = "deepspeedfp"

    def format_of(self, module: str, n: int, k: int) -> RoundedMatrix | None:
        is_rounded = is_linear(module)
        return RoundedMatrix(n, k, self.bits, self.group_size) if is_rounded else None

    def is_extra(self, name: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A matrix [n, k] of 16- or 32-bit floats, whose numbers are rounded to fewer bits."""

    n: int
    k: int
    bits: int
    group_size: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return {_WEIGHT: StoredTensor((self.n, self.k), ("BF16", "F16", "F32"))}

    @property
    def layout(self) -> CodeLayout | None:
        """Floats of 6 bits are also ones of E4M3; those of 8 bits go up to 480, E4M3 to 448."""
        if self.bits != 6 or self._columns < min(_MIN_GROUP, self.k):
            return None
        return CodeLayout("e4m3", self._columns)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        numbers, scales = self._rounded(tensors)
        return (numbers * scales).flatten()[: self.n * self.k].view(self.n, self.k)

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        import torch

        from taco_kernels.group_codes import GroupCodes

        numbers, scales = self._rounded(tensors)
        size = self.n * self.k
        codes = numbers.to(torch.float8_e4m3fn).view(torch.uint8).flatten()[:size]
        groups = torch.arange(0, size, self._columns) // self.group_size
        return GroupCodes(
            "e4m3",
            codes.view(self.n, self.k),
            self._columns,
            scales.flatten()[groups].view(self.n, -1),
        )

    @property
    def _columns(self) -> int:
        """Columns of a row that lie in one group wherever the row starts."""
        return math.gcd(self.k, self.group_size)

    def _rounded(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The floats [groups, group_size] and their scales [groups, 1]."""
        import torch

        floats = _FLOATS[self.bits]
        flat = tensors[_WEIGHT].float().flatten()
        padding = -flat.numel() % self.group_size
        groups = torch.nn.functional.pad(flat, (0, padding)).view(-1, self.group_size)
        greatest = groups.abs().amax(dim=1, keepdim=True)
        if not bool(greatest.isfinite().all()):
            raise ValueError("numbers are not finite")
        scaled = groups * (floats.largest / greatest.masked_fill(greatest == 0, 1))
        # Half of the last bit's value is added to the magnitude, and what is below it dropped.
        dropped = 23 - floats.mantissa_bits
        bits = scaled.view(torch.int32)
        magnitude = ((bits & 0x7FFFFFFF) + (1 << (dropped - 1))) >> dropped << dropped
        numbers = magnitude.view(torch.float32).clamp(2.0**floats.smallest, floats.largest)
        return numbers.copysign(scaled).where(scaled != 0, 0.0), greatest / floats.largest


def read(config: Mapping[str, Any], model_dir: Path) -> DeepSpeedFP:
    """Read the settings, which are in quant_config.json beside the weights.

    Raises:
        ValueError: a setting is invalid.
    """
    bits, group_size = config.get("bits"), config.get("group_size")
    if type(bits) is not int or bits not in _FLOATS:
        raise ValueError(f"bits of deepspeedfp must be 6 or 8, not {bits!r}")
    if type(group_size) is not int or not 1 <= group_size <= _MAX_GROUP_SIZE:
        raise ValueError(
            f"group_size of deepspeedfp must be 1 to {_MAX_GROUP_SIZE}, not {group_size!r:.60}"
        )
    return DeepSpeedFP(bits, group_size)
