"""A request body as frames, which a body process sends: JSON, text and packed integers."""

import json
from array import array
from collections.abc import Sequence
from typing import Any

from taco_gateway.http.strict_json import is_integers

LONG_CHARS = 4096  # strings from here on travel beside the JSON document
LONG_LIST = 256  # and so do lists of integers
PACKED_FIELDS = ("prompt", "tokens")  # their schemas take arrays
_INTEGERS = "i"
_TEXT = "s"

Path = list[str | int]


def pack(body: dict[str, Any]) -> list[bytes]:
    """A body as frames: places of the long values, the rest as JSON, then the long values.

    Raises:
        OverflowError: a long list has an integer that is no token id of any model.
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
    """The body that `pack` took; long lists of integers in `PACKED_FIELDS` are `array("i")`."""
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
