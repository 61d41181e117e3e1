"""JSON values of arguments that a model writes as plain text, by the tool's JSON schema."""

import json
import math
from typing import Any

from taco_gateway.text.response.local_refs import resolved

_TYPES = ("integer", "number", "boolean", "null", "object", "array", "string")
_MAX_UNIONS = 64  # schemas in a union, over all levels


def value_types(schema: Any, key: str) -> tuple[str, ...]:
    """The JSON types of a property of a tool's parameters; empty: any."""
    parameters = resolved(schema, schema)
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    described = properties.get(key) if isinstance(properties, dict) else None
    types: list[str] = []
    pending = [described]
    for _ in range(_MAX_UNIONS):
        if not pending:
            break
        part = resolved(schema, pending.pop(0))
        if not isinstance(part, dict):
            continue
        named = part.get("type", _types_of_values(part))
        types += [name for name in (named if isinstance(named, list) else [named]) if name]
        for union in ("anyOf", "oneOf", "allOf"):
            choices = part.get(union)
            pending += choices if isinstance(choices, list) else []
    return tuple(name for name in types if isinstance(name, str))


def _types_of_values(schema: dict[str, Any]) -> list[str]:
    """The types of the values that a schema lists."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    values = listed if isinstance(listed, list) else []
    return [name for name in _TYPES if any(_fits(value, name) for value in values)]


def typed_value(text: str, types: tuple[str, ...]) -> Any:
    """The first type that the text fits; the text itself if it fits none."""
    for name in types:
        if name == "string":
            continue
        try:
            value = json.loads(text.strip())
        except (ValueError, RecursionError):
            value = {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
        if _fits(value, name):
            return int(value) if name == "integer" else value
    return text


def _fits(value: Any, name: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match name:
        case "integer":
            return is_number and math.isfinite(value) and int(value) == value
        case "number":
            return is_number and math.isfinite(value)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case _:
            return False
