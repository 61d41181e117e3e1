"""Names, shapes and types of the tensors in a .bin file, without torch and without unpickling.

torch.save writes a pickle of the tensors' places, and their contents beside it: in a zip archive,
or in files of versions before 1.6 behind it. `PickledHeader` reads the instructions of the pickle
with `pickletools`, and follows those that torch writes for a dictionary of tensors. Nothing that a
file names is imported or called, and memory stays a small multiple of the pickle's size.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from taco_worker.quant.pickled_machine import Global, PickleMachine

PICKLED_ENDS = (".bin", ".pt", ".pth")  # of files that torch.save writes

_MAX_PICKLE_BYTES = 64 * 2**20
_MAX_AXES = 64
_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of old files
_STORAGE_TYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
}
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4} | dict.fromkeys(
    ("F16", "BF16", "I16", "U16"), 2
)


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """The shape of a tensor, and its type by its name in safetensors files."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """Numbers of one type in a file; `dtype` None: bytes of any type."""

    key: str
    dtype: str | None
    num_elements: int


def read_pickled_header(path: Path) -> dict[str, PickledTensor]:
    """The tensors of a file that torch.save wrote.

    Raises:
        ValueError: the file is damaged or cut off, or holds something other than tensors by name.
    """
    try:
        if zipfile.is_zipfile(path):
            return _of_archive(path)
        with path.open("rb") as file:
            return _tensors(_old_content(file), path.name)
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    except (OSError, EOFError, KeyError, IndexError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"cannot read {path}: it is damaged ({error!r:.200})") from None


def _of_archive(path: Path) -> dict[str, PickledTensor]:
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("it has no file data.pkl, which torch.save writes")
        size = entries[pickles[0]].file_size
        if size > _MAX_PICKLE_BYTES:
            raise ValueError(f"data.pkl has {size} bytes, more than {_MAX_PICKLE_BYTES}")
        content = archive.read(pickles[0])
    folder = pickles[0].removesuffix("data.pkl")
    sizes = {
        name.removeprefix(f"{folder}data/"): info.file_size
        for name, info in entries.items()
        if name.startswith(f"{folder}data/")
    }
    return _tensors(_result_of(io.BytesIO(content)), path.name, sizes)


def _old_content(file: IO[bytes]) -> object:
    """The third of the pickles at the start: the others are versions of the format."""
    bounded = io.BytesIO(file.read(_MAX_PICKLE_BYTES))
    if _result_of(bounded) != _MAGIC:
        raise ValueError("torch.save did not write it")
    _result_of(bounded)
    _result_of(bounded)
    return _result_of(bounded)


def _result_of(stream: IO[bytes]) -> object:
    machine = PickleMachine(_call, _storage)
    for code, argument, _ in pickletools.genops(stream):
        machine.run(code.name, argument)
    return machine.result


def _tensors(
    content: object, name: str, sizes: Mapping[str, int] | None = None
) -> dict[str, PickledTensor]:
    """Args: sizes: of storages in bytes, by key; None: unknown."""
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__} instead of tensors by name")
    tensors: dict[str, PickledTensor] = {}
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, _Placed):
            raise ValueError(f"it holds a {type(value).__name__} under {key!r:.100}")
        value.check(key, sizes)
        tensors[key] = PickledTensor(value.shape, value.dtype)
    return tensors


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor: elements of a storage from `offset` on, with these strides."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def check(self, name: str, sizes: Mapping[str, int] | None) -> None:
        """Raises ValueError if the tensor is larger than its storage, or that is cut off."""
        width = _BYTES.get(self.dtype, 1)
        available = self.storage.num_elements * _BYTES.get(self.storage.dtype or "", 1)
        if sizes is not None and sizes.get(self.storage.key, -1) != available:
            raise ValueError(f"the content of {name} has another size than its type and shape")
        steps = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((size - 1) * stride for size, stride in steps)
        if prod(self.shape) and (last + 1) * width > available:
            raise ValueError(f"{name} is larger than its content")


def _storage(identity: object) -> _Storage:
    """What a persistent id of torch.save is: ("storage", type, key, device, elements, ...)."""
    match identity:
        case ("storage", Global(module, type_name), str(key), _, int(count), *_) if count >= 0:
            if module == "torch.storage" and type_name == "UntypedStorage":
                return _Storage(key, None, count)
            if module == "torch" and type_name in _STORAGE_TYPES:
                return _Storage(key, _STORAGE_TYPES[type_name], count)
    raise ValueError(f"it refers to {identity!r:.100}, which is no storage of numbers")


def _call(function: object, arguments: object) -> object:
    """The result of a call in the pickle, for the functions that rebuild tensors."""
    match function, arguments:
        case Global("collections", "OrderedDict"), ():
            return {}
        case (
            Global("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2"),
            (_Storage() as storage, offset, shape, strides, *_),
        ) if storage.dtype is not None:
            return _placed(storage, storage.dtype, offset, shape, strides)
        case (
            Global("torch._utils", "_rebuild_tensor_v3"),
            (_Storage() as storage, offset, shape, strides, _, _, Global("torch", dtype), *_),
        ) if dtype in _DTYPES:
            return _placed(storage, _DTYPES[dtype], offset, shape, strides)
        case (
            Global("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"),
            (_Placed() as tensor, *_),
        ):
            return tensor
    raise ValueError(f"it calls {function!r:.100}, which no file of tensors needs")


def _placed(
    storage: _Storage, dtype: str, offset: object, shape: object, strides: object
) -> _Placed:
    for sizes in (shape, strides):
        is_valid = isinstance(sizes, tuple) and all(type(one) is int and one >= 0 for one in sizes)
        if not is_valid:
            raise ValueError(f"a tensor has the shape {shape!r:.100}, strides {strides!r:.100}")
    assert isinstance(shape, tuple)
    assert isinstance(strides, tuple)
    if len(shape) != len(strides) or len(shape) > _MAX_AXES:
        raise ValueError(f"a tensor has the shape {shape!r:.100}, strides {strides!r:.100}")
    if type(offset) is not int or offset < 0:
        raise ValueError(f"a tensor begins at {offset!r:.100}")
    return _Placed(storage, dtype, offset, shape, strides)
