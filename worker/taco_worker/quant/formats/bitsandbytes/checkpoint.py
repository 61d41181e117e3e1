"""Reads which matrices of a bitsandbytes checkpoint are quantized, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_worker.quant.config_files import source_of
from taco_worker.quant.formats.bitsandbytes.blocks import (
    ABSMAX,
    BLOCK_SIZES,
    QUANT_MAP,
    STATE,
    STORAGE_TYPES,
    TABLES,
    WEIGHT,
    Blocks,
    Nested,
)
from taco_worker.quant.formats.bitsandbytes.rows import ORDER, SCALES, Int8Rows
from taco_worker.quant.modules import ByModule, check_listed, is_listed
from taco_worker.quant.safetensors_header import IndexedTensor
from taco_worker.quant.safetensors_index import SafetensorsIndex, parse_settings

_MAX_STATE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class BlockState:
    """What the tensor `quant_state` of a 4-bit matrix says.

    Attributes:
        shape: of the matrix, [n, k].
        storage: type of the stored tensor of codes.
        has_map: as of `Blocks`.
    """

    kind: str
    block_size: int
    shape: tuple[int, ...]
    storage: str
    nested: Nested | None
    has_map: bool


@dataclass(frozen=True, slots=True)
class RowState:
    """An int8 matrix; `has_order` as of `Int8Rows`."""

    has_order: bool


State = BlockState | RowState


class BitsAndBytes:
    """The quantized matrices of a checkpoint: those that its files have scales of."""

    method = "bitsandbytes"

    def __init__(self, modules: Mapping[str, State]) -> None:
        self._modules = ByModule(modules)

    def format_of(self, module: str, n: int, k: int) -> Blocks | Int8Rows | None:
        state = self._modules.get(module)
        if state is None:
            return None
        if isinstance(state, RowState):
            return Int8Rows(n, k, state.has_order)
        if state.shape != (n, k):
            raise ValueError(
                f"the quant_state of {module} is of a matrix {list(state.shape)}, not [{n}, {k}]"
            )
        return Blocks(
            n, k, state.kind, state.block_size, state.storage, state.nested, state.has_map
        )

    def is_extra(self, name: str) -> bool:
        return False


class Expected:
    """The matrices that config.json names as quantized, where weight files are not at hand."""

    method = "bitsandbytes"

    def __init__(self, is_int8: bool, kind: str, skipped: tuple[str, ...]) -> None:
        self._is_int8, self._kind, self._skipped = is_int8, kind, skipped

    def format_of(self, module: str, n: int, k: int) -> Blocks | Int8Rows | None:
        if is_listed(module, self._skipped):
            return None
        return Int8Rows(n, k) if self._is_int8 else Blocks(n, k, self._kind, 64)

    def is_extra(self, name: str) -> bool:
        return False


def read(config: Mapping[str, Any], model_dir: Path) -> BitsAndBytes | Expected:
    """Read the settings of all quantized matrices.

    Args:
        config: `quantization_config` of config.json.
        model_dir: without weight files, config.json alone decides.

    Raises:
        ValueError: settings contradict each other, the weights are pickled, or a file is damaged.
    """
    is_int8, is_4bit = (_switch(config, name) for name in ("load_in_8bit", "load_in_4bit"))
    if is_int8 == is_4bit:
        raise ValueError(
            f"load_in_8bit and load_in_4bit of bitsandbytes are both {str(is_int8).lower()} in "
            f"{source_of(config)}: one of them must be true"
        )
    index = SafetensorsIndex.of(model_dir)
    if not index.has_files:
        if index.has_pickles:
            raise ValueError(
                f"bitsandbytes weights are read from safetensors files, and {model_dir} has only "
                ".bin files: save the model again with safe_serialization=True"
            )
        return Expected(is_int8, _type(config), _skipped(config))
    modules: dict[str, State] = {}
    for name, _ in index.with_suffix(SCALES):
        modules[name] = RowState(name + ORDER in index.tensors)
    for kind in TABLES:
        for name, tensor in index.with_suffix(STATE + kind):
            modules[name] = _state(name, tensor, index, kind)
    for name, _ in index.with_suffix(ABSMAX):
        if name not in modules:
            raise ValueError(f"{name}{ABSMAX} has no {name}{STATE}nf4 or {STATE}fp4 beside it")
    wrong = [name for name, state in modules.items() if isinstance(state, RowState) != is_int8]
    if wrong:
        wanted, found = ("8", "4") if is_int8 else ("4", "8")
        raise ValueError(
            f"{source_of(config)} says load_in_{wanted}bit, but {wrong[0]} has {found}-bit codes"
        )
    return BitsAndBytes(modules)


def _switch(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is None:
        value = config.get(f"_{name}", False)  # as transformers writes it since 4.38
    if not isinstance(value, bool):
        raise ValueError(f"{name} of {source_of(config)} must be true or false, not {value!r}")
    return value


def _type(config: Mapping[str, Any]) -> str:
    value = config.get("bnb_4bit_quant_type", "fp4")
    if value not in TABLES:
        raise ValueError(f"bnb_4bit_quant_type must be nf4 or fp4, not {value!r}")
    return str(value)


def _skipped(config: Mapping[str, Any]) -> tuple[str, ...]:
    value = config.get("llm_int8_skip_modules")
    if value is None:
        return ("lm_head",)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"llm_int8_skip_modules must be a list of names, not {value!r}")
    check_listed(value, "llm_int8_skip_modules")
    return tuple(value)


def _state(name: str, tensor: IndexedTensor, index: SafetensorsIndex, kind: str) -> BlockState:
    what = f"{name}{STATE}{kind} in {tensor.file}"
    weight = index.tensors.get(name + WEIGHT)
    if weight is None:
        raise ValueError(f"{what}: {name}{WEIGHT} is missing")
    if tensor.end - tensor.start > _MAX_STATE_BYTES:
        raise ValueError(f"{what} has more than {_MAX_STATE_BYTES} bytes")
    try:
        settings = parse_settings(tensor.read())
        if settings.get("quant_type") != kind:
            raise ValueError(f"its quant_type is {settings.get('quant_type')!r}")
        if weight.dtype not in STORAGE_TYPES:
            raise ValueError(f"codes stored as {weight.dtype} are not supported")
        return BlockState(
            kind,
            _block_size(settings, "blocksize"),
            _shape(settings),
            weight.dtype,
            _nested(settings) if "nested_blocksize" in settings else None,
            name + QUANT_MAP in index.tensors,
        )
    except ValueError as error:
        raise ValueError(f"cannot read {what}: {error}") from None


def _nested(settings: Mapping[str, Any]) -> Nested:
    offset = settings.get("nested_offset")
    if isinstance(offset, bool) or not isinstance(offset, int | float) or not math.isfinite(offset):
        raise ValueError(f"its nested_offset is {offset!r}, not a finite number")
    return Nested(_block_size(settings, "nested_blocksize"), float(offset))


def _block_size(settings: Mapping[str, Any], name: str) -> int:
    size = settings.get(name)
    if isinstance(size, bool) or size not in BLOCK_SIZES:
        known = ", ".join(map(str, BLOCK_SIZES))
        raise ValueError(f"its {name} is {size!r}, not one of {known}")
    return int(size)


def _shape(settings: Mapping[str, Any]) -> tuple[int, ...]:
    shape = settings.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"its shape is {shape!r}")
    return tuple(shape)
