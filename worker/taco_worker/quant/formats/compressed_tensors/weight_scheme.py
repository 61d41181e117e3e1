"""How a config group of compressed-tensors stores weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INTEGER_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
# Bits, strategy and group of the formats of 4- to 8-bit floats with two-level or E8M0 scales.
_FLOAT_FORMATS = {
    "nvfp4-pack-quantized": (4, "tensor_group", 16),
    "mxfp4-pack-quantized": (4, "group", 32),
    "mxfp6-pack-quantized": (6, "group", 32),
    "mxfp8-quantized": (8, "group", 32),
}
_FP8_FORMATS = ("float-quantized", "naive-quantized")
FORMATS = (*_INTEGER_FORMATS, "float-quantized", *_FLOAT_FORMATS)
_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """The `weights` of a config group, and their format.

    Attributes:
        strategy: what has a scale: "tensor", "channel" (a row), "group", "tensor_group" or "block".
        group: columns that share a scale, of "group" and "tensor_group".
        block: rows and columns that share a scale, of "block".
        has_column_groups: a tensor holds the group of each column (activation order).
    """

    format: str
    num_bits: int
    is_float: bool
    is_symmetric: bool
    strategy: str
    group: int | None
    block: tuple[int, int] | None
    has_column_groups: bool


def read_scheme(
    name: str, weights: Mapping[str, Any], format_: str | None, activations: Any
) -> WeightScheme:
    """The scheme of the config group `name`.

    Args:
        weights: its `weights`.
        format_: its own format, or that of the whole checkpoint; None: it follows from the rest.
        activations: its `input_activations`; that it has some says which format it is.

    Raises:
        ValueError: a setting is invalid or not supported.
    """
    bits, kind = weights.get("num_bits", 8), weights.get("type", "int")
    group, block = weights.get("group_size"), weights.get("block_structure")
    if kind not in ("int", "float"):
        raise ValueError(f"{name}: type must be int or float, not {kind!r}")
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
        raise ValueError(f"{name}: num_bits must be from 1 to 8, not {bits!r}")
    if weights.get("dynamic"):
        raise ValueError(f"{name}: weights are never quantized dynamically")
    is_symmetric = weights.get("symmetric", True)
    if not isinstance(is_symmetric, bool):
        raise ValueError(f"{name}: symmetric must be true or false, not {is_symmetric!r}")
    if kind == "float" and not is_symmetric:
        raise ValueError(f"{name}: weights of type float must be symmetric")
    strategy = _strategy(name, weights.get("strategy"), group)
    uses_group = strategy in ("group", "tensor_group")
    scheme = WeightScheme(
        format_ or _inferred(bits, kind, group, weights.get("scale_dtype"), activations),
        bits,
        kind == "float",
        is_symmetric,
        strategy,
        _positive(name, "group_size", group) if uses_group else None,
        _block(name, block) if strategy == "block" else None,
        _has_column_groups(name, weights.get("actorder")),
    )
    _check(name, scheme)
    return scheme


def _strategy(name: str, strategy: Any, group: Any) -> str:
    if strategy is None:
        by_group = "channel" if group == -1 else "group"
        return "tensor" if group is None else by_group
    if strategy not in _STRATEGIES:
        raise ValueError(
            f"{name}: unknown strategy {strategy!r} of weights; known: {', '.join(_STRATEGIES)}"
        )
    return str(strategy)


def _inferred(bits: int, kind: str, group: Any, scale_dtype: Any, activations: Any) -> str:
    """The format that compressed-tensors chooses."""
    if kind == "int":
        return "pack-quantized" if activations is None else "int-quantized"
    if group == 32 and (bits != 8 or scale_dtype == "torch.uint8"):
        return {4: "mxfp4-pack-quantized", 6: "mxfp6-pack-quantized"}.get(bits, "mxfp8-quantized")
    if bits == 4:
        return "nvfp4-pack-quantized"
    return "naive-quantized" if activations is None else "float-quantized"


def _positive(name: str, field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {field} must be a positive integer, not {value!r}")
    return value


def _block(name: str, block: Any) -> tuple[int, int]:
    if isinstance(block, str):  # older files: "128x128"
        block = [int(size) if size.isdigit() else size for size in block.split("x")]
    if not isinstance(block, list | tuple) or len(block) != 2:
        raise ValueError(f"{name}: block_structure must be [rows, columns], not {block!r}")
    rows, columns = (_positive(name, "block_structure", size) for size in block)
    return rows, columns


def _has_column_groups(name: str, order: Any) -> bool:
    if order in (None, False, "weight", "static"):
        return False
    if order in (True, "group", "dynamic"):
        return True
    raise ValueError(f"{name}: unknown actorder {order!r}; known: group, weight")


def _check(name: str, scheme: WeightScheme) -> None:
    """Raises ValueError unless the format can store such weights."""
    kind = "float" if scheme.is_float else "int"
    what = f"{name}: {scheme.format} cannot store weights of"
    if scheme.format in _FLOAT_FORMATS:
        bits, strategy, group = _FLOAT_FORMATS[scheme.format]
        fits = (kind, scheme.num_bits, scheme.strategy, scheme.group)
        if fits != ("float", bits, strategy, group):
            raise ValueError(
                f"{name}: {scheme.format} stores floats of {bits} bits with strategy {strategy} "
                f"and group_size {group}"
            )
    elif scheme.format not in FORMATS:
        known = ", ".join((*FORMATS, "mixed-precision"))
        raise ValueError(f"{name}: unknown format {scheme.format!r}; known: {known}")
    elif scheme.is_float and (scheme.format not in _FP8_FORMATS or scheme.num_bits != 8):
        raise ValueError(f"{what} {scheme.num_bits} bits and type float")
    elif not scheme.is_float and scheme.format not in _INTEGER_FORMATS:
        raise ValueError(f"{what} type int")
    elif scheme.strategy == "tensor_group":
        raise ValueError(f"{what} strategy tensor_group")
    elif scheme.format == "pack-quantized" and scheme.strategy == "block":
        raise ValueError(f"{what} strategy block")
    if scheme.has_column_groups and (
        scheme.format != "pack-quantized" or scheme.strategy != "group"
    ):
        raise ValueError(f"{name}: actorder group needs pack-quantized weights with groups")
