"""The table of tensors in files of CoreWeave's tensorizer, without torch.

The layout is that of tensorizer 2.12 (`serialization.py`): a header, a table with the name, type,
shape and place of each tensor, then the tensors. Nothing in it is a pickle.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"|TZR|"
_VERSIONS = (1, 2, 3, 4, 5)
_HEADER = struct.Struct("<I32sQ8xQ")  # version, flags, size of the tensors, their number
_ENCRYPTED, _VERSIONED = 1, 2  # flags
_LONG_SHAPES = 5  # version from which sizes have 8 bytes
_MAX_TABLE_BYTES = 64 * 2**20
_OPAQUE = "\0"  # before the name of a type that NumPy lacks
# By NumPy's codes of types, without the order of bytes: torch's name and the safetensors name.
_NUMPY_TYPES = {
    "f8": ("float64", "F64"),
    "f4": ("float32", "F32"),
    "f2": ("float16", "F16"),
    "i8": ("int64", "I64"),
    "i4": ("int32", "I32"),
    "i2": ("int16", "I16"),
    "i1": ("int8", "I8"),
    "u1": ("uint8", "U8"),
    "b1": ("bool", "BOOL"),
}
_OPAQUE_TYPES = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A tensor: `length` bytes from `start` of the file on.

    Attributes:
        torch_type: name of its type in torch.
        dtype: name of its type in safetensors files.
    """

    name: str
    torch_type: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    length: int


def is_tensorizer(path: Path) -> bool:
    """Whether a file begins as those of tensorizer do."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_table(path: Path) -> list[TableEntry]:
    """The tensors of a file.

    Raises:
        ValueError: it is damaged, encrypted, or of another version.
    """
    try:
        with path.open("rb") as file:
            entries = _entries(file)
        size = path.stat().st_size
        for entry in entries:
            if entry.start + entry.length > size:
                raise ValueError(f"{entry.name} is cut off")
    except (OSError, ValueError, struct.error) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    return entries


class _Table:
    """Reads numbers and texts one after another."""

    def __init__(self, content: bytes) -> None:
        self._content, self._offset = content, 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        numbers = struct.unpack_from(f"<{layout}", self._content, self._offset)
        self._offset += struct.calcsize(f"<{layout}")
        return numbers

    def text(self, length_layout: str) -> str:
        (length,) = self.unpack(length_layout)
        text = self._content[self._offset : self._offset + length]
        if len(text) != length:
            raise ValueError("its table of tensors is cut off")
        self._offset += length
        return text.decode()


def _entries(file: BinaryIO) -> list[TableEntry]:
    start = file.read(len(_MAGIC) + _HEADER.size)
    if not start.startswith(_MAGIC):
        raise ValueError("it is no file of tensorizer")
    version, flag_bytes, _, count = _HEADER.unpack_from(start, len(_MAGIC))
    flags = int.from_bytes(flag_bytes, "little")
    if version not in _VERSIONS or flags & ~(_ENCRYPTED | _VERSIONED):
        raise ValueError(f"version {version} of tensorizer's files is not supported")
    if flags & _ENCRYPTED:
        raise ValueError("it is encrypted, which is not supported")
    (size,) = struct.unpack("<Q", file.read(8))
    if size > _MAX_TABLE_BYTES:
        raise ValueError(f"its table of tensors has {size} bytes, more than {_MAX_TABLE_BYTES}")
    table = _Table(file.read(size))
    return [_entry(table, is_versioned=bool(flags & _VERSIONED)) for _ in range(count)]


def _entry(table: _Table, *, is_versioned: bool) -> TableEntry:
    version = table.unpack("I")[0] if is_versioned else 1
    name = table.text("H")
    table.unpack("B")  # a parameter, a buffer, or an entry of a state dict
    stored = table.text("B")
    (num_axes,) = table.unpack("B")
    shape = table.unpack(f"{num_axes}{'Q' if version >= _LONG_SHAPES else 'I'}")
    _, start, length = table.unpack("QQQ")
    torch_type, dtype = _types(name, stored)
    if prod(shape) * _BYTES.get(dtype, 1) != length:
        raise ValueError(f"{name} has {length} bytes for {list(shape)} {torch_type}")
    return TableEntry(name, torch_type, dtype, shape, start, length)


def _types(name: str, stored: str) -> tuple[str, str]:
    """torch's name of a stored type, and the safetensors name."""
    code, _, opaque = stored.partition(_OPAQUE)
    if opaque:
        torch_type = opaque.removeprefix("torch.")
        found = (torch_type, _OPAQUE_TYPES.get(torch_type, ""))
    else:
        found = _NUMPY_TYPES.get(code.lstrip("<|="), ("", ""))
    if not found[1]:
        raise ValueError(f"{name} is of the type {stored!r}, which is not supported")
    return found
