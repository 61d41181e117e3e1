"""Reads the header of a GGUF file: its metadata, and where its tensors are.

Every count, length and offset is checked against the file before anything is allocated for it.
Source: the specification `docs/gguf.md` of ggml, and the limits of its reader (`gguf.cpp`).
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from taco_worker.quant.gguf.blocks.block_types import BlockType, PlainType, tensor_type

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # of files that do not name one
_MAX_ALIGNMENT = 2**16
_MAX_KEYS, _MAX_TENSORS = 2**16, 2**20
_MAX_NAME_BYTES, _MAX_TEXT_BYTES = 2**10, 2**24
# Several times those of the largest published vocabularies and their merges.
_MAX_ITEMS = 2**23
_MAX_AXES = 4
# Layouts of `struct`, by the number of the type.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_TEXT, _ARRAY = 8, 9
_TYPE_NAMES = {8: "texts", 9: "arrays"}


class GgufError(ValueError):
    """A file is not a valid GGUF file; the message is one line without the file's name."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a file has a tensor.

    Attributes:
        shape: rows first, as in torch; the file stores it the other way round.
        start: byte of the file.
        num_bytes: of the tensor.
    """

    name: str
    type: PlainType | BlockType
    shape: tuple[int, ...]
    start: int
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The content of a file without its tensors.

    Attributes:
        metadata: numbers, texts, and lists of either, by key.
        tensors: by name, in the order of the file.
        digest: of the bytes of the header, hexadecimal.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    digest: str


def read_header(path: Path) -> GgufHeader:
    """Read the header of one file.

    Raises:
        ValueError: it is not a valid GGUF file; the message is one line with its name.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if not size:
                raise GgufError("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parse(content, size)
    except (OSError, GgufError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _parse(content: mmap.mmap, size: int) -> GgufHeader:
    cursor = _Cursor(content, size)
    version, num_tensors, num_keys = _counts(cursor)
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        raise GgufError(f"it has version {version} of GGUF, and {known} are supported")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.name("a key")
        if key in metadata:
            raise GgufError(f"it has the key {key!r} twice")
        metadata[key] = cursor.value(key)
    infos = [_tensor(cursor, f"tensor {i} of {num_tensors}") for i in range(num_tensors)]
    digest = hashlib.blake2b(memoryview(content)[: cursor.at], digest_size=16).hexdigest()
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not _is_alignment(alignment):
        raise GgufError(f"general.alignment is {alignment!r}, not a power of 2 from 1 to 65536")
    start = -(-cursor.at // alignment) * alignment
    tensors = _place(infos, start, alignment, size)
    return GgufHeader(metadata, tensors, digest)


def _counts(cursor: _Cursor) -> tuple[int, int, int]:
    if cursor.take(4, "its first bytes") != _MAGIC:
        raise GgufError("it is not a GGUF file")
    (version,) = cursor.unpack("I", "its version")
    if version and not version & 0xFFFF:
        raise GgufError("its numbers have the byte order of another machine (big-endian)")
    if version == 1:
        return version, 0, 0
    num_tensors, num_keys = cursor.unpack("QQ", "its counts")
    # A key has at least 13 bytes, a tensor at least 24.
    for what, count, limit, least in (
        ("keys", num_keys, _MAX_KEYS, 13),
        ("tensors", num_tensors, _MAX_TENSORS, 24),
    ):
        if count > limit or count * least > cursor.left:
            raise GgufError(f"it counts {count} {what} in a file of {cursor.size} bytes")
    return version, num_tensors, num_keys


def _tensor(cursor: _Cursor, what: str) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, number of the type, and offset."""
    name = cursor.name(f"the name of {what}")
    (num_axes,) = cursor.unpack("I", f"the axes of tensor {name!r}")
    if not 1 <= num_axes <= _MAX_AXES:
        raise GgufError(f"tensor {name!r} has {num_axes} axes, and 1 to {_MAX_AXES} are allowed")
    sizes = cursor.unpack("Q" * num_axes, f"the shape of tensor {name!r}")
    number, offset = cursor.unpack("IQ", f"the place of tensor {name!r}")
    return name, sizes[::-1], number, offset


def _place(
    infos: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape, number, offset in infos:
        if name in tensors:
            raise GgufError(f"it has the tensor {name!r} twice")
        try:
            kind = tensor_type(number)
        except ValueError as error:
            raise GgufError(f"tensor {name!r}: {error}") from None
        columns, block = (
            (kind.columns, kind.size) if isinstance(kind, BlockType) else (1, kind.size)
        )
        if not all(shape) or math.prod(shape) > 8 * size or shape[-1] % columns:
            of = f" of {kind.name}, whose blocks have {columns} columns" if columns > 1 else ""
            raise GgufError(f"tensor {name!r} has the invalid shape {list(shape)}{of}")
        num_bytes = math.prod(shape) // columns * block
        if offset % alignment or start + offset + num_bytes > size:
            raise GgufError(
                f"tensor {name!r} has {num_bytes} bytes from {start + offset} on, and the file has "
                f"{size} bytes (it may be cut off)"
                if not offset % alignment
                else f"tensor {name!r} starts at {offset}, not at a multiple of {alignment}"
            )
        tensors[name] = TensorInfo(name, kind, shape, start + offset, num_bytes)
    _check_overlaps(tensors)
    return tensors


def _check_overlaps(tensors: Mapping[str, TensorInfo]) -> None:
    by_start = sorted(tensors.values(), key=lambda one: one.start)
    for first, second in pairwise(by_start):
        if first.start + first.num_bytes > second.start:
            raise GgufError(f"tensors {first.name!r} and {second.name!r} overlap")


def _is_alignment(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return 0 < value <= _MAX_ALIGNMENT and not value & (value - 1)


class _Cursor:
    """Reads values one after another, never behind the end of the file."""

    def __init__(self, content: mmap.mmap, size: int) -> None:
        self._content = content
        self.size = size
        self.at = 0
        self._num_items = 0

    @property
    def left(self) -> int:
        return self.size - self.at

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise GgufError(f"it ends inside {what}")
        self.at += count
        return self._content[self.at - count : self.at]

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        layout = f"<{layout}"
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def name(self, what: str) -> str:
        text = self.text(what, _MAX_NAME_BYTES)
        if not text.isprintable():
            raise GgufError(f"{what} has characters that cannot be printed: {text!r}")
        return text

    def text(self, what: str, limit: int = _MAX_TEXT_BYTES) -> str:
        (length,) = self.unpack("Q", what)
        if length > limit:
            raise GgufError(f"{what} has {length} bytes, and {limit} are allowed")
        # Tokens of byte-level vocabularies are text; damaged files have other bytes.
        return self.take(length, what).decode("utf-8", "replace")

    def value(self, key: str) -> Any:
        (kind,) = self.unpack("I", f"the type of {key!r}")
        what = f"the value of {key!r}"
        if kind == _ARRAY:
            return self._array(key, what)
        if kind == _TEXT:
            return self.text(what)
        if kind not in _SCALARS:
            raise GgufError(f"{key!r} has the unknown type {kind}")
        return self.unpack(_SCALARS[kind], what)[0]

    def _array(self, key: str, what: str) -> list[Any]:
        kind, count = self.unpack("IQ", what)
        least = 8 if kind == _TEXT else struct.calcsize(_SCALARS.get(kind, "B"))
        self._num_items += count
        if self._num_items > _MAX_ITEMS or count * least > self.left:
            raise GgufError(f"{what} counts {count} items in a file of {self.size} bytes")
        if kind == _TEXT:
            return self._texts(count, what)
        if kind not in _SCALARS:
            raise GgufError(
                f"{key!r} is a list of {_TYPE_NAMES.get(kind, f'the unknown type {kind}')}"
            )
        return list(self.unpack(f"{count}{_SCALARS[kind]}", what))

    def _texts(self, count: int, what: str) -> list[str]:
        """As `text` for each; vocabularies have hundreds of thousands."""
        content, at, size = self._content, self.at, self.size
        length_at = struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            if at + 8 > size:
                raise GgufError(f"it ends inside {what}")
            (length,) = length_at(content, at)
            at += 8
            if length > _MAX_TEXT_BYTES or at + length > size:
                raise GgufError(f"{what} has a text of {length} bytes")
            texts.append(content[at : at + length].decode("utf-8", "replace"))
            at += length
        self.at = at
        return texts
