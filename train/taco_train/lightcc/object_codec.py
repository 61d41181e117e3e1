"""Python values as bytes, without pickle: what ranks send each other never runs code.

Plain values, containers of them, torch's tensors, dtypes and sizes, and numpy's arrays and scalars
can be sent: what optimizers' states and metrics consist of.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_MAX_DEPTH = 100


def encode_object(value: Any) -> bytes:
    """Raises TypeError that names the type of a value that cannot be sent."""
    parts: list[bytes] = []
    _write(value, parts, 0)
    return b"".join(parts)


def decode_object(data: bytes) -> Any:
    """Inverse of `encode_object`.

    Raises:
        ValueError: the bytes are no such value.
    """
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (struct.error, IndexError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"bytes of a value cannot be read: {error}") from None
    if reader.position != len(data):
        raise ValueError("bytes follow the value")
    return value


def _write(value: Any, parts: list[bytes], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise TypeError(f"values are nested more than {_MAX_DEPTH} deep")
    if value is None or value is True or value is False:
        parts.append({None: b"n", True: b"t", False: b"f"}[value])
    elif type(value) in _SCALARS:
        tag, encode = _SCALARS[type(value)]
        _write_bytes(tag, encode(value), parts)
    elif type(value) in _SEQUENCES:
        parts.append(_SEQUENCES[type(value)] + _LENGTH.pack(len(value)))
        for one in value:
            _write(one, parts, depth + 1)
    elif type(value) in _MAPPINGS:
        parts.append(_MAPPINGS[type(value)] + _LENGTH.pack(len(value)))
        for key, one in value.items():
            _write(key, parts, depth + 1)
            _write(one, parts, depth + 1)
    elif isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_meta or value.is_quantized:
            raise TypeError(
                f"a tensor of {value.dtype} and layout {value.layout} on {value.device} cannot be "
                "sent to other ranks: make it a dense one with values"
            )
        parts.append(b"T")
        _write([str(value.dtype)[len("torch.") :], list(value.shape)], parts, depth + 1)
        values = value.detach().resolve_conj().resolve_neg()
        flat = values.cpu().contiguous().flatten()
        _write_bytes(b"b", flat.view(torch.uint8).numpy().tobytes(), parts)
    elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.asarray(value)
        parts.append(b"G" if isinstance(value, np.generic) else b"A")
        _write([array.dtype.str, list(array.shape)], parts, depth + 1)
        _write_bytes(b"b", array.tobytes(), parts)
    elif isinstance(value, torch.dtype):
        _write_bytes(b"D", str(value)[len("torch.") :].encode(), parts)
    else:
        raise TypeError(
            f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be sent "
            "to other ranks: send numbers, text, containers of them, tensors or numpy arrays"
        )


def _write_bytes(tag: bytes, data: bytes, parts: list[bytes]) -> None:
    parts += [tag + _LENGTH.pack(len(data)), data]


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


_SCALARS: dict[type, tuple[bytes, Callable[[Any], bytes]]] = {
    int: (b"i", _integer),
    float: (b"d", _FLOAT.pack),
    complex: (b"c", lambda value: _FLOAT.pack(value.real) + _FLOAT.pack(value.imag)),
    str: (b"s", lambda value: value.encode("utf-8", "surrogatepass")),
    bytes: (b"b", bytes),
    bytearray: (b"B", bytes),
}
_SEQUENCES: dict[type, bytes] = {
    list: b"l",
    tuple: b"u",
    set: b"e",
    frozenset: b"z",
    torch.Size: b"S",
}
_MAPPINGS: dict[type, bytes] = {dict: b"m", OrderedDict: b"o"}
_FROM_SEQUENCE: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"u": tuple,
    b"e": set,
    b"z": frozenset,
    b"S": torch.Size,
}
_FROM_MAPPING: dict[bytes, Callable[[list[tuple[Any, Any]]], Any]] = {b"m": dict, b"o": OrderedDict}
_FROM_BYTES: dict[bytes, Callable[[bytes], Any]] = {
    b"i": lambda data: int.from_bytes(data, "little", signed=True),
    b"d": lambda data: _FLOAT.unpack(data)[0],
    b"c": lambda data: complex(_FLOAT.unpack(data[:8])[0], _FLOAT.unpack(data[8:])[0]),
    b"s": lambda data: data.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"B": bytearray,
    b"D": lambda data: _dtype(data.decode()),
}
_CONSTANTS = {b"n": None, b"t": True, b"f": False}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError(f"values are nested more than {_MAX_DEPTH} deep")
        tag = self._take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in b"TAG":
            return self._array(tag, depth)
        count = self._length()
        if tag in _FROM_BYTES:
            return _FROM_BYTES[tag](self._take(count))
        if count > len(self._data):
            raise ValueError(f"{count} values in {len(self._data)} bytes")
        if tag in _FROM_SEQUENCE:
            return _FROM_SEQUENCE[tag]([self.value(depth + 1) for _ in range(count)])
        make = _FROM_MAPPING[tag]
        return make([(self.value(depth + 1), self.value(depth + 1)) for _ in range(count)])

    def _array(self, tag: bytes, depth: int) -> Any:
        kind, shape = self.value(depth + 1)
        data = self.value(depth + 1)
        if tag == b"T":
            flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
            return (
                flat.view(_dtype(kind)).reshape(shape)
                if data
                else torch.empty(shape, dtype=_dtype(kind))
            )
        array = np.frombuffer(data, np.dtype(kind)).reshape(shape).copy()
        return array if tag == b"A" else array[()]

    def _length(self) -> int:
        return int(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise ValueError("the bytes of a value are cut off")
        taken = self._data[self.position : end]
        self.position = end
        return taken


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name:.40}")
    return found
