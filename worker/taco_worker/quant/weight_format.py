"""What a quantized checkpoint format says about the matrices that it stores.

Reading configurations and checking the headers of files needs no torch: formats import it only
where they decode tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from taco_kernels.code_layout import CodeLayout as CodeLayout  # of formats, which import it here

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One of the tensors that store a matrix.

    Attributes:
        shape: an axis of None may have any size.
        dtypes: allowed types, by their names in safetensors headers ("I32", "F16", "F8_E4M3").
        is_optional: `dequantize` works without it.
    """

    shape: tuple[int | None, ...]
    dtypes: tuple[str, ...]
    is_optional: bool = False


class WeightFormat(Protocol):
    """How a checkpoint stores one matrix [n, k] (out, in), or one expert's.

    Attributes:
        tensors: by the suffix that follows the module's name, such as ".qweight".
        layout: of `codes`; None: the format has no codes.
    """

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    @property
    def layout(self) -> CodeLayout | None: ...

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The matrix, float32 [n, k], from its tensors by suffix.

        Raises:
            ValueError: the values of a tensor are invalid, such as scales that are not finite.
        """
        ...

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        """Codes with exactly the values of `dequantize`, if there is a `layout`.

        Raises:
            ValueError: as `dequantize`.
        """
        ...


@runtime_checkable
class FormatOfRows(Protocol):
    """A `WeightFormat` that decodes some rows of a matrix without the others."""

    def codes_of_parts(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[int, GroupCodes]]:
        """`codes` of a few rows at a time, with the first row of each part.

        Raises:
            ValueError: as `dequantize`.
        """
        ...


class Quantization(Protocol):
    """The quantized modules of one checkpoint.

    Attributes:
        method: its name, as `--quantization` takes it.
    """

    @property
    def method(self) -> str: ...

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        """The format of a module's matrix [n, k]; None: it is stored without quantization.

        Args:
            module: the stored tensor's name without ".weight"; for experts that share tensors, the
                name of these.

        Raises:
            ValueError: the format cannot store such a matrix.
        """
        ...

    def is_extra(self, name: str) -> bool:
        """Whether a stored tensor is not needed, such as scales of the KV cache."""
        ...


class OnlineQuantization(Protocol):
    """Quantizes the matrices of an unquantized checkpoint as they are loaded.

    Attributes:
        method: its name, as `--quantization` takes it.
    """

    @property
    def method(self) -> str: ...

    def layout_of(self, module: str, n: int, k: int) -> CodeLayout | None:
        """The layout of a module's rows [n, k]; None: they stay as they are stored."""
        ...

    def quantize(self, rows: Tensor) -> GroupCodes:
        """The codes of rows [n, k] of any floating-point type.

        Raises:
            ValueError: numbers are not finite.
        """
        ...
