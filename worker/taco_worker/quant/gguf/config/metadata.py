"""Typed access to the metadata of a GGUF file; every error names the key and its value."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

_MAX_SIZE = 2**24


class Metadata:
    """The keys of a file. Methods take a key without the prefix of the architecture.

    Attributes:
        values: by their whole keys.
        architecture: the file's name of it, which is the prefix of its keys.

    Raises:
        ValueError: a key is missing and has no default, or its value is invalid.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise ValueError("it names no architecture (general.architecture)")
        self.architecture = architecture

    def get(self, key: str) -> Any:
        """The value as it is; None: the file does not have the key."""
        return self.values.get(f"{self.architecture}.{key}")

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer; of a list by layer, the one that all layers share."""
        value = self._find(key, default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(
                    f"{self._name(key)} differs between layers, which is not supported"
                )
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_SIZE:
            raise ValueError(f"{self._name(key)} must be a positive integer, not {value!r:.100}")
        return value

    def count(self, key: str, layer: int, default: int | None = None) -> int:
        """The number of a layer, 0 or more of a list; files may have one number for all layers."""
        value = self._find(key, default)
        if not isinstance(value, list):
            return self.size(key, default)
        if layer >= len(value):
            raise ValueError(f"{self._name(key)} has {len(value)} items, and none of layer {layer}")
        return self._item(key, value[layer])

    def largest(self, key: str, default: int | None = None) -> int:
        """Of a list by layer, the largest number."""
        value = self._find(key, default)
        if not isinstance(value, list) or not value:
            return self.size(key, default)
        return max(self._item(key, one) for one in value)

    def _item(self, key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_SIZE:
            raise ValueError(f"{self._name(key)} must have integers from 0, not {value!r:.100}")
        return value

    def optional_size(self, key: str) -> int | None:
        """None: the key is missing or 0."""
        return self.size(key) if self.get(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, with the digits that a float32 keeps."""
        value = self._find(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ValueError(f"{self._name(key)} must be a finite number, not {value!r:.100}")
        return shortest(float(value))

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self._find(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self._name(key)} must be true or false, not {value!r:.100}")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._find(key, default)
        if not isinstance(value, str):
            raise ValueError(f"{self._name(key)} must be a text, not {value!r:.100}")
        return value

    def _find(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise ValueError(f"it has no key {self._name(key)!r}")
        return default if value is None else value

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same as a float32: 1e-06 for its nearest."""
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        if _as_float32(short) == _as_float32(value):
            return short
    return value


def _as_float32(value: float) -> bytes | None:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return None
