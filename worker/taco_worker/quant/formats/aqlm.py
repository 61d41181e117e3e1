"""AQLM: a group of numbers is a sum of vectors from codebooks (https://arxiv.org/abs/2401.06118).

Layout as in `aqlm.utils._dequantize_weight` of aqlm 1.1. There are no group codes: matrices are
dequantized when they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taco_worker.quant.modules import ByModule
from taco_worker.quant.safetensors_index import SafetensorsIndex
from taco_worker.quant.weight_format import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

_CODES, _CODEBOOKS, _SCALES = ".codes", ".codebooks", ".scales"
_FLOATS = ("F16", "BF16", "F32")
_MAX_BITS = 16


@dataclass(frozen=True, slots=True)
class Scheme:
    """How all matrices of a checkpoint are coded.

    Attributes:
        rows, columns: of the part of a matrix that a vector holds.
        num_codebooks: vectors that are added.
        bits: of a code; a codebook has 2 ** bits vectors.
    """

    rows: int
    columns: int
    num_codebooks: int
    bits: int


class Aqlm:
    """The quantized matrices of a checkpoint: those that its files have codes of."""

    method = "aqlm"

    def __init__(self, scheme: Scheme, modules: ByModule[bool] | None, skipped: frozenset[str]):
        """`modules` is None where weight files are not at hand: then all but `skipped` are."""
        self._scheme, self._modules, self._skipped = scheme, modules, skipped

    def format_of(self, module: str, n: int, k: int) -> AqlmMatrix | None:
        if self._modules is None:
            is_quantized = not self._skipped & {module, f"{module}.weight"}
        else:
            is_quantized = self._modules.get(module) is not None
        if not is_quantized:
            return None
        rows, columns = self._scheme.rows, self._scheme.columns
        if n % rows or k % columns:
            raise ValueError(
                f"{module} is a matrix [{n}, {k}], which AQLM's groups of [{rows}, {columns}] do "
                "not divide"
            )
        return AqlmMatrix(n, k, self._scheme)

    def is_extra(self, name: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class AqlmMatrix:
    """A matrix [n, k] in groups, each with a code for every codebook and a scale of its rows."""

    n: int
    k: int
    scheme: Scheme
    layout = None

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        scheme = self.scheme
        out_groups, in_groups = self.n // scheme.rows, self.k // scheme.columns
        books = (scheme.num_codebooks, 2**scheme.bits, scheme.rows, scheme.columns)
        codes = ("I8",) if scheme.bits <= 8 else ("I16",)
        return {
            _CODES: StoredTensor((out_groups, in_groups, scheme.num_codebooks), codes),
            _CODEBOOKS: StoredTensor(books, _FLOATS),
            _SCALES: StoredTensor((out_groups, 1, 1, 1), _FLOATS),
        }

    def dequantize(self, tensors: Mapping[str, Tensor]) -> Tensor:
        scheme = self.scheme
        books, scales = tensors[_CODEBOOKS].float(), tensors[_SCALES].float()
        for name, numbers in ((_CODEBOOKS, books), (_SCALES, scales)):
            if not bool(numbers.isfinite().all()):
                raise ValueError(f"{name[1:]} have values that are not finite")
        codes = tensors[_CODES].int() % 2**scheme.bits  # stored as signed integers
        groups = books[0][codes[..., 0]]
        for number in range(1, scheme.num_codebooks):
            groups += books[number][codes[..., number]]
        groups *= scales  # [out_groups, in_groups, rows, columns]
        if not bool(groups.isfinite().all()):
            raise ValueError("codebooks times scales are so large that numbers overflow")
        return groups.transpose(1, 2).reshape(self.n, self.k)

    def codes(self, tensors: Mapping[str, Tensor]) -> Any:
        raise ValueError("AQLM has no group codes")


def read(config: Mapping[str, Any], model_dir: Path) -> Aqlm:
    """Read `quantization_config`.

    Raises:
        ValueError: a setting is missing or invalid, or weight files are not safetensors.
    """
    scheme = Scheme(
        _size(config, "out_group_size", 64),
        _size(config, "in_group_size", 64),
        _size(config, "num_codebooks", 64),
        _size(config, "nbits_per_codebook", _MAX_BITS),
    )
    skipped = config.get("linear_weights_not_to_quantize") or []
    if not isinstance(skipped, list) or not all(isinstance(one, str) for one in skipped):
        raise ValueError(f"linear_weights_not_to_quantize must be a list of names, not {skipped!r}")
    index = SafetensorsIndex.of(model_dir)
    if index.has_files:
        found = {name: True for name, _ in index.with_suffix(_CODES)}
        return Aqlm(scheme, ByModule(found), frozenset())
    if index.has_pickles:
        raise ValueError(
            f"AQLM weights are read from safetensors files, and {model_dir} has only .bin files"
        )
    return Aqlm(scheme, None, frozenset({"lm_head", *skipped}))


def _size(config: Mapping[str, Any], name: str, largest: int) -> int:
    size = config.get(name)
    if type(size) is not int or not 1 <= size <= largest:
        raise ValueError(f"{name} of AQLM must be 1 to {largest}, not {size!r}")
    return size
