"""AWQ checkpoints: integers of 4 bits, as AutoAWQ and llm-awq write them.

A matrix [n, k] is stored in the order of one of three kernels. "gemm", packed along n:

    .qweight  int32 [k, n / 8]
    .qzeros   int32 [k / group, n / 8]
    .scales   float [k / group, n]

where a word holds the columns 0, 2, 4, 6, 1, 3, 5, 7 of eight, the first in the lowest bits.
"gemv", packed along k and in order; w is the number of words for the groups of a row:

    .qweight  int32 [n, k / 8]
    .qzeros   int32 [n, w]
    .scales   float [n, 8 * w]

"gemv_fast" (and llm-awq), with the products of scales and zero points:

    .qweight       int16 [n / 4, k]
    .scales        float [8 * w, n]
    .scaled_zeros  float [8 * w, n]  minus zero point times scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.formats.marlin import MarlinMatrix
from taco_worker.quant.integers.layout import integer_layout
from taco_worker.quant.integers.rules import is_language_head, names_part
from taco_worker.quant.integers.settings import Settings
from taco_worker.quant.weight_format import CodeLayout, Quantization, StoredTensor, WeightFormat

if TYPE_CHECKING:
    from torch import Tensor

    from taco_kernels.group_codes import GroupCodes

_WEIGHT, _SCALES, _ZEROS, _SCALED_ZEROS = ".qweight", ".scales", ".qzeros", ".scaled_zeros"
_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight, in the order of a word of "gemm"
_FLOATS = ("F16", "BF16", "F32")
_VERSIONS = ("gemm", "gemv", "gemv_fast", "marlin", "exllama", "ipex", "llm-awq")


def read(config: Mapping[str, Any], model_dir: Path) -> Quantization:
    """The quantization that a `quantization_config` describes.

    Raises:
        ValueError: a setting is unknown or not allowed.
    """
    settings = Settings(config)
    settings.bits((4,), "bits", "w_bit")
    version = settings.choice(_VERSIONS, "version", "format", "checkpoint_format", default="gemm")
    if settings.text("backend", default="auto") == "llm-awq":
        version = "llm-awq"
    has_zeros = settings.flag("zero_point", default=True)
    if version == "marlin" and has_zeros:
        raise ValueError('version "marlin" of AWQ has no zero points, but zero_point is true')
    return Awq(
        version,
        settings.group_size("group_size", "q_group_size"),
        settings.names("modules_to_not_convert"),
        settings.flag("lm_head", default=False),
    )


@dataclass(frozen=True, slots=True)
class Awq:
    """An AWQ checkpoint.

    Attributes:
        version: the order in which matrices are stored.
        group_size: columns of a group; None: a row is one group.
        excluded: parts of the names of modules that are not quantized.
        has_language_head: the language model head is quantized.
    """

    version: str
    group_size: int | None
    excluded: tuple[str, ...]
    has_language_head: bool = False
    method = "awq"

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        if is_language_head(module) and not self.has_language_head:
            return None
        if any(names_part(part, module) for part in self.excluded):
            return None
        return awq_matrix(self.version, n, k, self.group_size)

    def is_extra(self, name: str) -> bool:
        return False


def awq_matrix(version: str, n: int, k: int, group_size: int | None) -> WeightFormat:
    """The format of a matrix [n, k].

    Raises:
        ValueError: the format cannot hold the matrix.
    """
    group = k if group_size is None else group_size
    if k % group:
        raise ValueError(f"AWQ cannot store {k} in features in groups of {group}")
    if version == "marlin":
        return MarlinMatrix(n, k, group_size, codes_name=_WEIGHT, scales_name=_SCALES)
    if version == "gemv":
        return GemvMatrix(n, k, group)
    if version in ("gemv_fast", "llm-awq"):
        return FastGemvMatrix(n, k, group)
    return GemmMatrix(n, k, group)


@dataclass(frozen=True, slots=True)
class GemmMatrix:
    """A matrix [n, k] of the version "gemm"."""

    n: int
    k: int
    group: int

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        _check_multiple("gemm", "out", self.n, 8)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        groups = self.k // self.group
        return {
            _WEIGHT: StoredTensor((self.k, self.n // 8), ("I32",)),
            _ZEROS: StoredTensor((groups, self.n // 8), ("I32",)),
            _SCALES: StoredTensor((groups, self.n), _FLOATS),
        }

    @property
    def layout(self) -> CodeLayout:
        return integer_layout(4, self.group, has_zeros=True)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.native.stored_codes import transpose_nibbles
        from taco_worker.quant.integers.codes import integer_codes

        words = tensors[_WEIGHT]
        return integer_codes(
            self._columns(words) if self.k % 8 else transpose_nibbles(words, _ROWS),
            self._columns(tensors[_ZEROS]),
            tensors[_SCALES].T,
            bits=4,
            layout=self.layout,
        )

    @staticmethod
    def _columns(words: Tensor) -> Tensor:
        """The codes [n, r] of words [r, n / 8]: each holds the even columns, then the odd ones."""
        from taco_kernels.bit_stream import unpack

        codes = unpack(words, 4).unflatten(1, (-1, 2, 4))
        return codes.permute(1, 3, 2, 0).reshape(-1, words.shape[0])


@dataclass(frozen=True, slots=True)
class GemvMatrix:
    """A matrix [n, k] of the version "gemv"."""

    n: int
    k: int
    group: int

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        _check_multiple("gemv", "in", self.k, 8)
        _group_words(self.k, self.group)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        words = _group_words(self.k, self.group)
        return {
            _WEIGHT: StoredTensor((self.n, self.k // 8), ("I32",)),
            _ZEROS: StoredTensor((self.n, words), ("I32",)),
            _SCALES: StoredTensor((self.n, 8 * words), _FLOATS),
        }

    @property
    def layout(self) -> CodeLayout:
        return integer_layout(4, self.group, has_zeros=True)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.bit_stream import unpack
        from taco_worker.quant.integers.codes import integer_codes

        groups = self.k // self.group
        return integer_codes(
            tensors[_WEIGHT],
            unpack(tensors[_ZEROS], 4)[:, :groups],
            tensors[_SCALES][:, :groups],
            bits=4,
            layout=self.layout,
        )


@dataclass(frozen=True, slots=True)
class FastGemvMatrix:
    """A matrix [n, k] of the version "gemv_fast".

    Four rows are interleaved in blocks of 64 columns. Of 32 columns, the lowest bits hold 0, 8, 16
    and 24, and the next ones 2, 10, ... (row of a block, half, b, c, a: column 8a + 2b + c).
    """

    n: int
    k: int
    group: int

    def __post_init__(self) -> None:
        """Raises ValueError if the format cannot hold the matrix."""
        _check_multiple("gemv_fast", "in", self.k, 64)
        _check_multiple("gemv_fast", "out", self.n, 4)
        _group_words(self.k, self.group)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        scales = StoredTensor((8 * _group_words(self.k, self.group), self.n), _FLOATS)
        return {
            _WEIGHT: StoredTensor((self.n // 4, self.k), ("I16",)),
            _SCALES: scales,
            _SCALED_ZEROS: scales,
        }

    @property
    def layout(self) -> CodeLayout:
        return CodeLayout("int4", self.group, has_minima=True)

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.codes(tensors).values()

    def codes(self, tensors: Mapping[str, Tensor]) -> GroupCodes:
        from taco_kernels.bit_stream import unpack
        from taco_kernels.group_codes import GroupCodes
        from taco_worker.quant.integers.codes import finite

        groups = self.k // self.group
        stored = unpack(tensors[_WEIGHT], 4).unflatten(1, (-1, 4, 2, 4, 2, 4))
        return GroupCodes(
            "int4",
            stored.permute(0, 2, 1, 3, 6, 4, 5).reshape(self.n, self.k),
            self.group,
            finite(tensors[_SCALES][:groups].T, "scales"),
            minima=finite(-tensors[_SCALED_ZEROS][:groups].T, "scaled_zeros"),
        )


def _check_multiple(version: str, name: str, size: int, multiple: int) -> None:
    if size % multiple:
        raise ValueError(
            f"AWQ {version} cannot store {size} {name} features: it needs a multiple of {multiple}"
        )


def _group_words(k: int, group: int) -> int:
    """32-bit words for the 4-bit zero points of a row, as AutoAWQ rounds them up.

    Raises:
        ValueError: the format has no such groups.
    """
    multiples = {64: 2, 32: 4}
    if group < 128 and group not in multiples:
        raise ValueError(f"AWQ gemv cannot store groups of {group}: it has 32, 64, and 128 or more")
    multiple = multiples.get(group, 1)
    words = -(-(k // group) // 8)
    return -(-words // multiple) * multiple
