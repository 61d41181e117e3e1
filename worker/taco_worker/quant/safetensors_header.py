"""Reads the headers of safetensors files without torch, as strictly as the safetensors library.

Source of the layout: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from taco_common.json_file import JsonFileError, parse_json_object

_LENGTH_BYTES = 8  # little-endian, in front of the header
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_MAX_READ_BYTES = 64 * 2**20
_METADATA = "__metadata__"
# Bits of a number, by the names of the library.
_NUM_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True)
class IndexedTensor:
    """Where a tensor is: bytes `start` to `end` of `file`; `dtype` is its safetensors name."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def read(self) -> bytes:
        """Its bytes; of small tensors only.

        Raises:
            ValueError: it is larger than 64 MiB, or the file is truncated.
        """
        size = self.end - self.start
        if size > _MAX_READ_BYTES:
            raise ValueError(f"{size} bytes in {self.file}: at most {_MAX_READ_BYTES} are read")
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            content = stream.read(size)
        if len(content) != size:
            raise ValueError(f"{self.file} is cut off")
        return content


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """Tensors and metadata of one file, by name."""

    tensors: Mapping[str, IndexedTensor]
    metadata: Mapping[str, str]


def read_safetensors_header(file: Path) -> SafetensorsHeader:
    """The header of a safetensors file, whose tensors are exactly the rest of the file.

    Raises:
        ValueError: the file cannot be read, its header is damaged, or it is truncated; the message
            is one line and names the file.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            num_bytes = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            start = _LENGTH_BYTES + num_bytes
            if num_bytes > _MAX_HEADER_BYTES or start > size:
                raise ValueError(f"a header of {num_bytes} bytes in a file of {size} bytes")
            text = stream.read(num_bytes).decode()
        entries = parse_json_object(text, file)
        metadata = _metadata(entries.pop(_METADATA, None))
        tensors = {name: _tensor(name, entry, file, start) for name, entry in entries.items()}
        end = max((tensor.end for tensor in tensors.values()), default=start)
    except JsonFileError as error:
        raise ValueError(f"{error} (the header of a safetensors file)") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: not a safetensors file ({error})") from None
    if end != size:
        what = "is cut off" if end > size else "is too long"
        raise ValueError(f"{file} {what}: its header asks for {end} bytes, the file has {size}")
    in_order = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end))
    for name, tensor in in_order:
        if tensor.start != start:
            raise ValueError(f"cannot read {file}: {name} does not begin where the one before ends")
        start = tensor.end
    return SafetensorsHeader(tensors, metadata)


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise ValueError("the metadata of its header are not texts")
    return value


def _tensor(name: str, entry: Any, file: Path, data_start: int) -> IndexedTensor:
    """Raises ValueError if an entry is damaged."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(offsets):
        raise ValueError(f"the entry of {name!r} is {entry!r:.200}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"the data_offsets of {name!r} are {offsets!r:.100}")
    num_bytes = offsets[1] - offsets[0]
    if dtype not in _NUM_BITS:
        raise ValueError(f"{name!r} has the unknown type {dtype!r:.60}")
    if num_bytes * 8 != prod(shape) * _NUM_BITS[dtype]:
        raise ValueError(f"{name!r} is {dtype} {shape!r:.100}, and has {num_bytes} bytes")
    start, end = (data_start + offset for offset in offsets)
    return IndexedTensor(file, dtype, tuple(shape), start, end)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
