"""Matrices that checkpoints store in several tensors, such as codes and scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from taco_worker.models.plan.views import Shape


class Dequantization(Protocol):
    """Computes the rows of a parameter from stored tensors.

    Attributes:
        method: `quant_method` of the config.json of such checkpoints.
        suffixes: each tensor's name is the source's name with one of them.
    """

    @property
    def method(self) -> str: ...

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    def stored_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """The shapes of the tensors from which `dequantize` makes rows of `shape`."""
        ...

    def dequantize(self, *tensors: Any) -> Any:
        """The rows, float32; each is computed from the same row of each tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """4-bit floats with a scale for 32 columns (OCP Microscaling Formats 1.0, section 6.3).

    A number has a sign, 2 bits of exponent and 1 of mantissa; a scale is a power of two. All
    products are bfloat16 numbers.

    Attributes:
        num_columns: of the matrix; a row's last block may have more.
    """

    num_columns: int
    method = "mxfp4"
    suffixes = ("_blocks", "_scales")

    def stored_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """Codes [rows, blocks, 16], the even column in a byte's low bits; scales [rows, blocks]."""
        blocks = (shape[0], -(-self.num_columns // 32))
        return (*blocks, 16), blocks

    def dequantize(self, *tensors: Any) -> Any:
        codes, scales = tensors
        both = (codes[..., None] >> codes.new_tensor([0, 4])) & 15
        factors = (scales.float() - 127).exp2()
        numbers = factors.new_tensor(_FP4)[both.flatten(2).int()]
        return (numbers * factors[..., None]).flatten(1)[:, : self.num_columns]


_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4 = (*_POSITIVE, *(-number for number in _POSITIVE))
