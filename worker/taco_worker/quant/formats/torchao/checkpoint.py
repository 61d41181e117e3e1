"""Reads which tensors of a torchao checkpoint are quantized, from the metadata of its headers.

Source: torchao 0.18, `prototype/safetensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_worker.quant.formats.torchao.block_floats import ELEMENTS, FP4, BlockFloats
from taco_worker.quant.formats.torchao.floats import E4M3, E5M2, Float8Tensor
from taco_worker.quant.formats.torchao.integers import Int4Tensor, IntegerTensor, TiledInt4Tensor
from taco_worker.quant.formats.torchao.names import (
    QDATA,
    SCALE,
    SCALE_AND_ZERO,
    TENSOR_SCALE,
    ZERO_POINT,
)
from taco_worker.quant.modules import ByModule
from taco_worker.quant.safetensors_header import IndexedTensor
from taco_worker.quant.safetensors_index import SafetensorsIndex, parse_settings
from taco_worker.quant.weight_format import WeightFormat

_PLAIN = "Tensor"
_ENDS = ("qdata", "scale", "zero_point", "scale_and_zero", "per_tensor_scale")
# The class whose symmetric weights are stored without zero points.
_OPTIONAL_ZEROS = "Int8Tensor"
_WEIGHT = ".weight"
# Further tensors that change products, by the end of their names.
_UNSUPPORTED = {"act_pre_scale": "scales of activations (AWQ, SmoothQuant)"}
# Static scales of activations, which TACO computes for each token.
_IGNORED = (
    "._weight_act_quant_scale",
    "._weight_act_quant_zero_point",
    "._weight_act_per_tensor_scale",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A quantized weight.

    Attributes:
        kind: its class in torchao.
        data: its settings.
        stored: its tensors by suffix, as the headers have them.
        listed: suffixes of its tensors according to the metadata; None: they do not tell.
    """

    kind: str
    data: Mapping[str, Any]
    stored: Mapping[str, IndexedTensor]
    listed: frozenset[str] | None


class TorchAo:
    """The quantized matrices of a checkpoint."""

    method = "torchao"

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        """`entries` by the names of modules."""
        self._entries = ByModule(entries)

    def format_of(self, module: str, n: int, k: int) -> WeightFormat | None:
        entry = self._entries.get(module)
        return None if entry is None else _FORMATS[entry.kind](entry, module, n, k)

    def is_extra(self, name: str) -> bool:
        return name.endswith(_IGNORED)


def read(config: Mapping[str, Any], model_dir: Path) -> TorchAo:
    """Read the settings of all quantized matrices from the files' headers.

    Raises:
        ValueError: the weights are pickled, metadata are damaged, or a tensor's class is not
            supported.
    """
    index = SafetensorsIndex.of(model_dir)
    if not index.has_files:
        if index.has_pickles:
            raise ValueError(
                f"the torchao weights in {model_dir} are pickled, and pickles run code: save the "
                "model again as safetensors, with torchao 0.15 or later"
            )
        return TorchAo({})
    if "tensor_names" not in index.metadata:
        raise ValueError(
            f"the safetensors files in {model_dir} lack the metadata of torchao (tensor_names): "
            "save the model again with torchao 0.15 or later"
        )
    entries: dict[str, Entry] = {}
    for name, text in index.metadata.items():
        if not name.endswith(_WEIGHT):
            continue
        module = name.removesuffix(_WEIGHT)
        entry = _entry(name, text, index)
        if entry is not None:
            entries[module] = entry
    return TorchAo(entries)


def _entry(name: str, text: str, index: SafetensorsIndex) -> Entry | None:
    """The entry of a weight; None: it is not quantized."""
    try:
        settings = parse_settings(text)
    except ValueError as error:
        raise ValueError(f"cannot read torchao's metadata of {name}: {error}") from None
    kind, data = settings.get("_type"), settings.get("_data", {})
    if kind == _PLAIN:
        return None
    if not isinstance(kind, str) or kind not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise ValueError(f"{name} is a torchao {kind}, which is not supported; known: {known}")
    if not isinstance(data, Mapping):
        raise ValueError(f"cannot read torchao's metadata of {name}: _data is not an object")
    module, _, parameter = name.rpartition(".")
    prefix = f"{module}._{parameter}_"
    stored = {
        f"._{parameter}_{end}": tensor
        for end in (*_ENDS, *_UNSUPPORTED)
        if (tensor := index.tensors.get(prefix + end)) is not None
    }
    listed = _listed(name, settings.get("_tensor_data_names"), parameter)
    for end, what in _UNSUPPORTED.items():
        if f"._{parameter}_{end}" in {*stored, *(listed or ())}:
            raise ValueError(f"{name} has {what}, which are not supported")
    return Entry(kind, data, stored, listed)


def _listed(name: str, ends: object, parameter: str) -> frozenset[str] | None:
    """The suffixes of the tensors that the metadata of weight `name` list."""
    if ends is None:
        return None
    if not isinstance(ends, list) or not all(isinstance(end, str) for end in ends):
        raise ValueError(
            f"cannot read torchao's metadata of {name}: _tensor_data_names is not a list of names"
        )
    return frozenset(f"._{parameter}_{end}" for end in ends)


def _integer(entry: Entry, module: str, n: int, k: int) -> IntegerTensor:
    rows, columns = _block(entry, module, n, k)
    zeros = entry.stored.get(ZERO_POINT)
    if zeros is None:
        # Headers are checked later: a tensor that is promised here must be stored.
        stores_zeros = _lists_zeros(entry, module)
        return IntegerTensor(n, k, rows, columns, stores_zeros, stores_zeros)
    has_zeros = rows * columns < k or any(zeros.read())
    return IntegerTensor(n, k, rows, columns, has_zeros)


def _lists_zeros(entry: Entry, module: str) -> bool:
    """Whether an integer weight has zero points, without which asymmetric codes are wrong numbers.

    Raises:
        ValueError: the metadata do not tell.
    """
    if entry.kind != _OPTIONAL_ZEROS:
        return True
    if entry.listed is None:
        raise ValueError(
            f"{module} has no {ZERO_POINT}, and its torchao metadata do not say that it is "
            "symmetric (no _tensor_data_names): save the model again with a newer torchao"
        )
    return ZERO_POINT in entry.listed


def _int4(entry: Entry, module: str, n: int, k: int) -> Int4Tensor:
    _, columns = _block(entry, module, n, k)
    if k % 2:
        raise ValueError(f"{module}: torchao packs two columns a byte, and {k} is odd")
    return Int4Tensor(n, k, columns)


def _tiled(entry: Entry, module: str, n: int, k: int) -> TiledInt4Tensor:
    _, columns = _block(entry, module, n, k)
    codes = entry.stored.get(QDATA)
    shape = () if codes is None else codes.shape
    if len(shape) != 4 or shape[2] != 32:
        raise ValueError(f"{module}{QDATA} must be [rows / 8, tiles, 32, words], not {list(shape)}")
    tiled = TiledInt4Tensor(n, k, columns, (shape[0], shape[1], shape[2], shape[3]))
    if shape[0] * 8 < n or shape[1] * shape[3] * 32 < k:
        raise ValueError(f"{module}{QDATA} {list(shape)} is too small for a matrix [{n}, {k}]")
    return tiled


def _float8(entry: Entry, module: str, n: int, k: int) -> Float8Tensor:
    codes, scale = entry.stored.get(QDATA), entry.stored.get(SCALE)
    dtype = E4M3 if codes is None else codes.dtype
    if dtype not in (E4M3, E5M2):
        raise ValueError(f"{module}{QDATA} must be {E4M3} or {E5M2}, not {dtype}")
    shape = () if scale is None else scale.shape
    is_one = len(shape) < 2 and all(size == 1 for size in shape)
    if not is_one and (len(shape) != 2 or 0 in shape or n % shape[0] or k % shape[1]):
        raise ValueError(f"{module}{SCALE} {list(shape)} does not divide a matrix [{n}, {k}]")
    return Float8Tensor(n, k, dtype, shape)


def _microscaled(entry: Entry, module: str, n: int, k: int) -> BlockFloats:
    elements = entry.data.get("elem_dtype")
    if isinstance(elements, Mapping):  # a dtype of torch
        elements = elements.get("_data")
    if not isinstance(elements, str) or elements not in ELEMENTS:
        known = ", ".join(ELEMENTS)
        raise ValueError(f"{module}: elem_dtype of torchao is {elements!r:.60}; known: {known}")
    group, is_swizzled = _group(entry, module, k), _is_swizzled(entry, module)
    return BlockFloats(n, k, elements, group, is_swizzled, has_power_scales=True)


def _nvfp4(entry: Entry, module: str, n: int, k: int) -> BlockFloats:
    # Headers are checked later: a tensor that is promised here must be stored.
    has_scale = TENSOR_SCALE in {*entry.stored, *(entry.listed or ())}
    group, is_swizzled = _group(entry, module, k), _is_swizzled(entry, module)
    return BlockFloats(n, k, FP4, group, is_swizzled, False, has_scale)


def _group(entry: Entry, module: str, k: int) -> int:
    """Columns that share a scale."""
    group = entry.data.get("block_size")
    if type(group) is not int or group < 2 or group % 2 or k % group:
        raise ValueError(
            f"{module}: the block_size of torchao is {group!r:.60}; it must be even, and divide "
            f"{k} columns"
        )
    return group


def _is_swizzled(entry: Entry, module: str) -> bool:
    value = entry.data.get("is_swizzled_scales", False)
    if not isinstance(value, bool):
        raise ValueError(
            f"{module}: is_swizzled_scales of torchao must be true or false, not {value!r:.60}"
        )
    return value


def _block(entry: Entry, module: str, n: int, k: int) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    block = entry.data.get("block_size")
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and size > 0 for size in block)
    ):
        raise ValueError(f"{module}: the block_size of torchao is {block!r}, not two sizes")
    rows, columns = min(block[0], n), min(block[1], k)
    if n % rows or (k % columns and SCALE_AND_ZERO not in entry.stored):
        raise ValueError(f"{module}: blocks of {block} do not divide a matrix [{n}, {k}]")
    return rows, columns


_FORMATS: Mapping[str, Callable[[Entry, str, int, int], WeightFormat]] = {
    "Int8Tensor": _integer,
    "IntxUnpackedToInt8Tensor": _integer,
    "Int4Tensor": _int4,
    "Int4TilePackedTo4dTensor": _tiled,
    "Float8Tensor": _float8,
    "MXTensor": _microscaled,
    "NVFP4Tensor": _nvfp4,
}
