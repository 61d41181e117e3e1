"""Packs a parsed request body for the parser process: JSON, long texts, packed integers."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

from taco_gateway.http.strict_json import is_integers

LONG_CHARS = 4096  # longer strings are frames beside the JSON document
LONG_LIST = 256  # longer lists of integers, too
PACKED_FIELDS = ("prompt", "tokens")  # their schemas take arrays
_INTEGERS = "i"
_TEXT = "s"

Path = list[str | int]


def pack(body: dict[str, Any]) -> list[bytes]:
    """Packs a body as frames: places of the long values, the rest as JSON, the long values.

    Raises:
        OverflowError: a long list has an integer that does not fit 32 bits.
    """
    places: list[tuple[str, Path]] = []
    frames: list[bytes] = []
    pending: list[tuple[Path, Any, dict[str, Any] | list[Any]]] = [([], "", {"": body})]
    while pending:
        path, key, holder = pending.pop()
        value = holder[key]
        if isinstance(value, str) and len(value) >= LONG_CHARS:
            places.append((_TEXT, path))
            frames.append(value.encode())
            holder[key] = None
        elif isinstance(value, list) and len(value) >= LONG_LIST and is_integers(value):
            places.append((_INTEGERS, path))
            frames.append(array("i", value).tobytes())
            holder[key] = None
        elif isinstance(value, dict):
            pending += [([*path, name], name, value) for name in value]
        elif isinstance(value, list):
            pending += [([*path, i], i, value) for i in range(len(value))]
    document = json.dumps(body, ensure_ascii=False).encode()
    return [json.dumps(places).encode(), document, *frames]


def unpack(frames: Sequence[bytes]) -> dict[str, Any]:
    """Inverse of `pack`; long lists of integers in `PACKED_FIELDS` become `array("i")`."""
    places: list[tuple[str, Path]] = json.loads(frames[0])
    body: dict[str, Any] = json.loads(frames[1])
    for (kind, path), frame in zip(places, frames[2:], strict=True):
        holder: Any = body
        for key in path[:-1]:
            holder = holder[key]
        if kind == _TEXT:
            holder[path[-1]] = frame.decode()
        else:
            ids = array("i", frame)
            holder[path[-1]] = ids if path[0] in PACKED_FIELDS else ids.tolist()
    return body
